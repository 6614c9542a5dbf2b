"""``fencegate serve`` with a listener for Envoy, asked by a real client of gRPC."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from envoy_data_plane.envoy.service.auth.v3 import (
    AttributeContext,
    AttributeContextHttpRequest,
    AttributeContextRequest,
    CheckRequest,
    CheckResponse,
)

from system.serving import Serving

pytestmark = pytest.mark.system


def test_envoy_is_answered_beside_the_other_listeners_until_the_end(
    serve: Callable[..., Serving], tmp_path: Path, unused_ports: list[int]
) -> None:
    address = f"127.0.0.1:{unused_ports[0]}"
    gateway = serve(
        "--embedded", str(tmp_path / "pg"), "--set", f"envoy.listen={address}", "--set", "envoy.role=ledger"
    ).listens()
    token = gateway.discovered()
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary("/envoy.service.auth.v3.Authorization/Check")

        def status(presented: int) -> int:
            http = AttributeContextHttpRequest(method="POST", headers={"x-fencing-token": str(presented)})
            about = AttributeContext(request=AttributeContextRequest(http=http))
            answer = CheckResponse.parse(check(bytes(CheckRequest(attributes=about)), timeout=30))
            if answer.denied_response is None:
                return 200
            assert answer.denied_response.status is not None
            return int(answer.denied_response.status.code)

        assert (status(token), status(token + 1)) == (200, 403)
        assert gateway.write(token).status == 201
        assert gateway.stop() == 0
        with pytest.raises(grpc.RpcError):
            status(token)


def test_an_address_that_is_taken_is_a_fault_by_name(
    serve: Callable[..., Serving], tmp_path: Path, unused_ports: list[int]
) -> None:
    address = f"127.0.0.1:{unused_ports[0]}"
    first = serve("--embedded", str(tmp_path / "a"), "--set", f"envoy.listen={address}").listens()
    second = serve("--embedded", str(tmp_path / "b"), "--set", f"envoy.listen={address}")
    assert second.ends() == 1
    assert any("envoy.listen" in line and "cannot listen there" in line for line in second.err)
    assert first.stop() == 0

from __future__ import annotations

from fencegate.gameday.meters import Meter, read_counters

EXPOSITION = """\
# TYPE fencing_rejections_total counter
fencing_rejections_total{reason="not_leader",region="dr",role="ledger"} 93.0
fencing_rejections_total{reason="stale_token",region="dr",role="ledger"} 0.0
fencing_rejections_total{reason="not_leader",region="dr",role="other"} 1e+01
fencing_rejections_created{reason="not_leader",region="dr",role="ledger"} 1.7e+09
fencing_checks_total{outcome="accepted",role="ledger"} 7.0
"""


def test_rejections_and_checks_are_read_and_zeros_left_out():
    rejections, checks = read_counters(EXPOSITION)
    assert rejections == {"not_leader": 103}
    assert "stale_token" not in rejections
    assert checks == {"accepted": 7}


def _refused(count: int) -> str:
    return f'fencing_rejections_total{{reason="no_leader",role="ledger"}} {count}.0\n'


def test_a_counter_that_fell_belongs_to_a_new_process_and_the_old_count_is_kept():
    meter = Meter("http://127.0.0.1:1")
    for count in (5, 8, 2, 3):
        meter.take(_refused(count))
    assert meter.rejections == {"no_leader": 11}


async def test_a_gateway_that_is_down_leaves_the_counts_as_they_were():
    meter = Meter("http://127.0.0.1:1")  # nobody listens on port 1
    meter.take(_refused(5))
    await meter.read()
    assert meter.rejections == {"no_leader": 5}

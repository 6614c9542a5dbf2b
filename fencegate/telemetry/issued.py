"""How far the tokens of each role have been issued, by what facts tell: also where the issuer went back (rule R10)."""

from __future__ import annotations


class Issued:
    """Each method gives the number to be shown for ``role``: 0 for nobody's term."""

    def __init__(self) -> None:
        self._behind: dict[str, tuple[int, int]] = {}
        """By role, how far the issuer has issued, and the token that it has to catch up with."""

    def went_back(self, role: str, token: int, max_token_seen: int) -> int:
        """The issuer stands at ``token``, and the store has accepted more."""
        self._behind[role] = token, max_token_seen
        return token

    def leads(self, role: str, token: int) -> int:
        """The election's word: the term of ``token`` is the current one, 0 for none.

        That the issuer went back is said once, and then nobody may win; which of both facts comes last is chance. So
        its number stays until it has caught up: with a 0 the alarm would have nothing to compare.
        """
        if role not in self._behind:
            return token
        issued, to_catch_up_with = self._behind.pop(role)
        token = token or issued
        if token < to_catch_up_with:
            self._behind[role] = token, to_catch_up_with
        return token

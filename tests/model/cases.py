"""What the models must show: which hold, what breaks which of them, and what must be possible at all."""

from __future__ import annotations

from dataclasses import dataclass

ORDER = "an_older_term_wrote_after_a_newer_one"
SERVERS = "one_term_wrote_on_two_servers"
CYCLE = "acceptance cycle"
"""Spin's words for a run that goes on for ever without what was asked for."""


@dataclass(frozen=True)
class Holds:
    """Every rule is in force: no assertion may be violated in any state."""

    model: str
    switches: tuple[str, ...] = ()
    large: tuple[str, ...] | None = None
    """The switches of the long run, on demand; ``None``: the same."""


HOLDS = [
    Holds("lease", (), ("TERMS=4",)),
    Holds("lease", ("A_CLIENT_DRIVES", "TERMS=2"), ("A_CLIENT_DRIVES",)),
    Holds("lease", ("QUORUM_REVOKES_EARLY", "STRICT_WAIT", "TERMS=2"), ("QUORUM_REVOKES_EARLY", "STRICT_WAIT")),
    Holds("etcd", (), ("ROUNDS=7", "LEASE=5")),
    Holds("seal", (), ("TERMS=5",)),
    Holds("failover", (), ("TERMS=4",)),
    Holds("token", (), ("TERMS=4",)),
    Holds("drain"),
    Holds("handoff", (), ("HANDOFFS=4",)),
    Holds("liveness"),
    Holds("idempotency", (), ("TRIES=5",)),
    Holds("clockless", (), ("TERMS=5",)),
]


@dataclass(frozen=True)
class Breaks:
    """One thing is left out, and this is what spin must find violated, the shortest way."""

    model: str
    switches: tuple[str, ...]
    violated: str = ORDER


RULES = [
    Breaks("lease", ("WITHOUT_R1",)),
    Breaks("lease", ("WITHOUT_R1_A_FRESH_SNAPSHOT",)),
    Breaks("lease", ("WITHOUT_R2",)),
    Breaks("lease", ("WITHOUT_R3_CLOCK_FIRST",)),
    Breaks("lease", ("WITHOUT_R3_ITS_OWN_ANSWER",)),
    Breaks("lease", ("WITHOUT_R3_A_PROOF",)),
    Breaks("etcd", ("WITHOUT_R3_THE_SECOND_COMPARISON",), "the_key_went_before_its_promise"),
    Breaks("lease", ("WITHOUT_R4_DRIFT",)),
    Breaks("lease", ("WITHOUT_R4_STALL",)),
    Breaks("lease", ("WITHOUT_R5",)),
    Breaks("lease", ("WITHOUT_R6", "A_CLIENT_DRIVES")),
    Breaks("lease", ("WITHOUT_R6_THE_TOKEN", "A_CLIENT_DRIVES")),
    Breaks("seal", ("WITHOUT_R7_A_TOKEN",)),
    Breaks("seal", ("WITHOUT_R7_A_TOKEN_FLAG_STAYS",), "a_later_term_is_shut_out"),
    Breaks("seal", ("WITHOUT_R7_A_TOKEN_FLAG_CLEARED",)),
    Breaks("seal", ("WITHOUT_R7_THE_WAIT",)),
    Breaks("seal", ("WITHOUT_R8_A_SEAL",)),
    Breaks("seal", ("WITHOUT_R8_A_SEAL_THAT_IS_KNOWN",)),
    Breaks("seal", ("WITHOUT_R8_THE_COMPARISON",)),
    Breaks("failover", ("WITHOUT_R8_THE_SERVER",)),
    Breaks("failover", ("WITHOUT_R9",), SERVERS),
    Breaks("failover", ("WITHOUT_R9_A_NEW_TERM",), SERVERS),
    Breaks("failover", ("WITHOUT_R9_ONE_SERVER_PER_CLAIM",), SERVERS),
    Breaks("token", ("WITHOUT_R9",)),
    Breaks("token", ("WITHOUT_R9_THE_READ_AFTER",)),
    Breaks("token", ("WITHOUT_R10",)),
    Breaks("token", ("WITHOUT_R11",), "a_token_never_issued_raised_the_fence"),
    Breaks("drain", ("WITHOUT_R12_THE_MARK_FIRST",)),
    Breaks("drain", ("WITHOUT_R12_EVERY_WRITE_WAITS",)),
    Breaks("drain", ("WITHOUT_R12_THE_MARK_IN_THE_LOOK",)),
    Breaks("drain", ("WITHOUT_R12_A_ROW",)),
    Breaks("drain", ("WITHOUT_R12_A_NAME_PER_LIFE",)),
    Breaks("drain", ("WITHOUT_R12_THE_DEADLINE",)),
    Breaks("drain", ("WITHOUT_R12_THE_LAST_LOOK",)),
    Breaks("handoff", ("WITHOUT_R12_AFTER_THE_SEAL",)),
    Breaks("idempotency", ("WITHOUT_R13_ONE_TRANSACTION",), "one_key_was_applied_twice"),
    Breaks("idempotency", ("WITHOUT_R13_AN_OWNER",), "one_key_was_applied_twice"),
    Breaks("liveness", ("WITHOUT_R14_A_STORE_THAT_ANSWERS",), CYCLE),
    Breaks("liveness", ("WITHOUT_R14_THE_UNDO",), CYCLE),
    Breaks("liveness", ("WITHOUT_R14_THE_UNDO_REPEATED",), CYCLE),
    Breaks("liveness", ("WITHOUT_R14_THE_HOLD_BACKS_END",), CYCLE),
    Breaks("clockless", ("WITHOUT_R15_THE_READ",)),
    Breaks("clockless", ("WITHOUT_R15_PENDING_FIRST",)),
    Breaks("clockless", ("WITHOUT_R15_A_FRESH_READ",)),
    Breaks("clockless", ("WITHOUT_R15_THE_COMPARISON",), "answered_though_it_was_voided"),
]

LIMITS = [
    Breaks("lease", ("QUORUM_REVOKES_EARLY",)),
    Breaks("lease", ("QUORUM_RESTORED",)),
    Breaks("token", ("THE_OLD_PRIMARY_GOES_ON",)),
    Breaks("token", ("HOLDERS_OUTLIVE_THEIR_NUMBER",), "two_holders_wrote_under_one_token"),
    Breaks("token", ("BOTH_GO_BACK",)),
    Breaks("handoff", ("UNPLANNED",)),
    Breaks("idempotency", ("THE_KEYS_FOLLOW_LATER",), "one_key_was_applied_twice"),
]
"""With every rule in force: what no rule covers. README.md tells each."""

NAIVE = ["naive_max", "naive_flag", "naive_watcher"]

REACHED = [
    # Model, switches, and a state that the rules must leave possible.
    ("lease", (), "newest == 3 && max_seen[0] == 3"),
    ("lease", (), "newest == 2 && max_seen[1] == 2 && late_token[0] == 1"),
    ("lease", ("A_CLIENT_DRIVES",), "newest == 2"),
    ("lease", ("QUORUM_REVOKES_EARLY", "STRICT_WAIT"), "newest == 2"),
    ("etcd", (), "renewed_late && promised"),
    ("seal", (), "newest == 3 && sealed[0] && sealed[1]"),
    ("failover", (), "promoted && newest && wrote_at == STANDBY"),
    ("failover", (), "promoted && newest == 3 && open[PRIMARY]"),
    ("token", (), "promoted && newest == 3 && row_incarnation == 2"),
    ("token", (), "restored && max_seen > issued && newest == max_seen && current"),
    ("drain", (), "newest == 2 && life_of_gateway[0]"),
    ("handoff", (), "newest == 2 && handoffs == 2"),
    ("liveness", (), "holder == 1 && open[1] && store_down[0]"),
    ("idempotency", (), "row == SETTLED && tries == TRIES"),
    ("clockless", (), "newest == 2 && term == 3 && pending[0]"),
    ("clockless", (), "newest == 3 && claimed[0] && claimed[1]"),
]

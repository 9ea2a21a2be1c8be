"""Evidence against GPUs: C14's rules as a table, and what must hold whatever happens in whatever order."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.gpu_health import Health, cleared, evidence, heard, merged, pruned, read, repeated, silence
from llmgw.core.gpu_reading import Reading, Sample, Xid
from llmgw.core.gpu_rules import APART_S, DAY_S, INSPECTION, MISSING, NOTE_LASTS_S, XIDS, Clearing, rule_of
from llmgw.core.gpus import Evidence, Severity

CARD = "GPU-1"
NOW = 1_800_000_000.0
GOOD = Sample(CARD, 0, "Sim 24G", 24576, 1024, ecc_uncorrected=0, remap_pending=False, recovery="none", energy_mj=10**9)


def of(health: Health, now: float = NOW, boot: str = "b1") -> dict[str, Evidence]:
    return {e.cause: e for e in evidence([health], now, boot)[health.uuid]}


def hit(*codes_and_times: tuple[int, float], boot: str = "b1", health: Health | None = None) -> Health:
    one = health or Health(CARD)
    for code, at in codes_and_times:
        one = heard(one, f"xid {code}", at, boot)
    return one


@pytest.mark.parametrize("code", [13, 31, 43, 45, 63, 92, 94])
def test_a_programs_fault_is_a_note_that_ages_out(code):
    one = hit((code, NOW))
    assert of(one)[f"xid {code}"].severity is Severity.NOTE
    assert of(one, NOW + NOTE_LASTS_S - 1)
    assert of(one, NOW + NOTE_LASTS_S) == {}


@pytest.mark.parametrize("code", [48, 64, 74, 79, 95, 119, 120])
def test_a_gpu_that_failed_is_excluded_and_no_time_heals_it(code):
    one = hit((code, NOW))
    assert of(one, NOW + 365 * DAY_S)[f"xid {code}"].severity is Severity.EXCLUDED


@pytest.mark.parametrize("code", [119, 120])
def test_a_system_processor_that_is_gone_says_reset_required(code):
    assert "reset required" in of(hit((code, NOW)))[f"xid {code}"].says


def test_evidence_says_what_clears_it():
    assert str(of(hit((79, NOW)))["xid 79"]) == (
        "xid 79: fallen off the bus; clears: a reboot of the node, or an operator"
    )


@pytest.mark.parametrize("code", [48, 79, 119])
def test_a_reboot_clears_some(code):
    one = hit((code, NOW))
    assert of(one, NOW + 300, boot="b2") == {}


def test_a_reset_clears_what_a_reset_cures_and_a_card_off_the_bus_needs_a_reboot():
    one = read(hit((119, NOW), (79, NOW), health=read(Health(CARD), GOOD, NOW)), GOOD, NOW)
    after = read(one, evolve(GOOD, energy_mj=5), NOW + 60)
    assert set(of(one)) == {"xid 119", "xid 79"}
    assert set(of(after)) == {"xid 79"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (evolve(GOOD, remap_pending=True), GOOD),
        (evolve(GOOD, ecc_uncorrected=2), GOOD),
        (evolve(GOOD, recovery="GPU reset"), GOOD),
        (GOOD, evolve(GOOD, energy_mj=0)),
    ],
)
def test_a_reset_is_noticed_by_what_only_a_reset_lowers(before, after):
    one = hit((120, NOW), health=read(Health(CARD), before, NOW))
    assert "xid 120" not in of(read(one, after, NOW + 1))


@pytest.mark.parametrize("after", [evolve(GOOD, energy_mj=None), evolve(GOOD, energy_mj=10**9 - 5), GOOD])
def test_what_proves_no_reset_clears_nothing(after):
    one = hit((120, NOW), health=read(Health(CARD), GOOD, NOW))
    assert "xid 120" in of(read(one, after, NOW + 1))


def test_an_operators_word_clears_what_stands_and_not_what_comes_after():
    one = cleared(hit((79, NOW)), "xid 79")
    assert one is not None
    assert of(one) == {}
    assert set(of(hit((79, NOW + 1), health=one))) == {"xid 79"}


def test_the_third_repeat_asks_for_a_look_at_the_hardware_and_only_that_look_ends_it():
    one = hit((79, NOW), boot="b1")
    one = hit((79, NOW + DAY_S), boot="b2", health=one)
    assert INSPECTION not in of(one, boot="b2")
    one = hit((79, NOW + 2 * DAY_S), boot="b3", health=one)
    found = of(one, boot="b4")
    assert set(found) == {INSPECTION}
    assert found[INSPECTION].severity is Severity.EXCLUDED
    assert found[INSPECTION].says == "xid 79 (fallen off the bus) came back 3 times in 30 days"
    for later in (one, pruned(one, NOW + 400 * DAY_S, "b9")):
        assert INSPECTION in of(later, NOW + 400 * DAY_S, "b9")
    looked_at = cleared(one, INSPECTION)
    assert looked_at is not None
    assert of(looked_at, boot="b4") == {}
    assert INSPECTION not in of(hit((79, NOW + 3 * DAY_S), boot="b5", health=looked_at), boot="b5")


def test_a_burst_is_one_incident_and_three_in_three_months_are_no_repeat():
    assert INSPECTION not in of(hit(*((79, NOW + n) for n in range(50))))
    assert INSPECTION not in of(hit((79, NOW), (79, NOW + 29 * DAY_S), (79, NOW + 58 * DAY_S)), NOW + 60 * DAY_S)


def test_repeats_of_a_note_ask_for_nothing():
    assert list(repeated(hit((13, NOW), (13, NOW + 100), (13, NOW + 200)))) == []


def test_uncorrected_errors_exclude_unless_the_driver_says_it_dealt_with_them():
    old_driver = read(Health(CARD), evolve(GOOD, ecc_uncorrected=1, recovery=None), NOW)
    new_driver = read(Health(CARD), evolve(GOOD, ecc_uncorrected=1), NOW)
    needs_reset = read(Health(CARD), evolve(GOOD, ecc_uncorrected=1, recovery="GPU reset"), NOW)
    assert of(old_driver)["ecc uncorrected"].severity is Severity.EXCLUDED
    assert of(new_driver)["ecc uncorrected, recovered"].severity is Severity.NOTE
    assert of(needs_reset)["recovery asked"].says == "the driver asks for: GPU reset"


def test_an_operator_accepts_as_many_errors_as_there_are_and_no_more():
    bad = evolve(GOOD, ecc_uncorrected=2, recovery=None)
    one = cleared(read(Health(CARD), bad, NOW), "ecc uncorrected")
    assert one is not None
    assert of(read(one, bad, NOW + 1)) == {}
    assert set(of(read(one, evolve(bad, ecc_uncorrected=3), NOW + 1))) == {"ecc uncorrected"}


def test_rows_to_be_remapped_are_a_note_and_rows_that_can_not_be_exclude():
    one = read(Health(CARD), evolve(GOOD, remap_pending=True, remap_failed=True, slowed="thermal"), NOW)
    assert {c: e.severity.value for c, e in of(one).items()} == {
        "row remap failed": "excluded",
        "row remap pending": "note",
        "slowed": "note",
    }
    assert of(read(one, GOOD, NOW + 5)) == {}


def test_what_the_driver_fails_to_tell_is_not_taken_for_health():
    one = read(Health(CARD), evolve(GOOD, ecc_uncorrected=None, untold={"ecc": "Unknown Error"}), NOW)
    assert of(one)["untold"].says == "the driver fails to tell: ecc (Unknown Error)"
    assert of(one)["untold"].severity is Severity.EXCLUDED


def test_a_card_that_is_no_longer_listed_is_missing_until_it_is_or_an_operator_forgets_it():
    known = merged((), Reading((GOOD,)), NOW, "b1")
    known = merged(known, Reading((), trouble="GPU 0: GPU is lost"), NOW + 1, "b1")
    known = merged(known, Reading(()), NOW + 2, "b2")
    found = of(known[0], NOW + 2, "b2")[MISSING]
    assert (found.severity, found.first_at) == (Severity.EXCLUDED, NOW + 1)
    assert of(merged(known, Reading((GOOD,)), NOW + 3, "b2")[0]) == {}
    assert cleared(known[0], MISSING) is None


def test_a_slice_that_was_taken_away_is_forgotten_and_what_excludes_its_card_excludes_it():
    part = Sample("MIG-1", 0, "slice", 20480, 0, slice_of=CARD)
    known = merged((), Reading((evolve(GOOD, sliced=True), part), (Xid(CARD, 95, NOW), Xid(CARD, 13, NOW))), NOW, "b")
    found = evidence(known, NOW, "b")
    assert [e.cause for e in found["MIG-1"]] == ["xid 95"]
    assert [e.cause for e in found[CARD]] == ["xid 95", "xid 13"]
    assert [one.uuid for one in merged(known, Reading((GOOD,)), NOW + 1, "b")] == [CARD]


def test_an_error_of_a_card_nobody_knows_is_not_remembered():
    assert merged((), Reading((), (Xid("GPU-x", 79, NOW),)), NOW, "b") == ()


def test_a_number_without_a_rule_is_a_note():
    assert of(hit((9999, NOW)))["xid 9999"].severity is Severity.NOTE


def test_silence_names_its_age():
    assert silence(45.2, NOW - 45, NOW).says == "the driver has not answered for 45 s"
    assert silence(None, NOW, NOW).severity is Severity.EXCLUDED


def test_what_is_remembered_is_bounded():
    one = hit(*((79, NOW + n * 2 * APART_S) for n in range(500)))
    one = hit(*((code, NOW) for code in range(1000)), health=one)
    assert len(one.incidents) < 100
    assert INSPECTION in of(one)


errors = st.lists(
    st.tuples(st.sampled_from(sorted(XIDS)), st.integers(0, 900).map(lambda s: NOW + s)), min_size=1, max_size=16
)


@given(errors, st.randoms(use_true_random=False))
def test_the_order_in_which_errors_are_heard_does_not_matter(some, rng):
    shuffled = rng.sample(some, len(some))
    assert of(hit(*some)) == of(hit(*shuffled))
    assert hit(*some) == hit(*shuffled)


@given(errors)
def test_every_error_that_is_young_is_counted_once(some):
    found = of(hit(*some), NOW + 900)
    counts = {cause: e.count for cause, e in found.items() if cause != INSPECTION}
    assert counts == {f"xid {code}": sum(1 for c, _ in some if c == code) for code, _ in some}


acts = st.lists(
    st.one_of(
        st.tuples(st.just("xid"), st.sampled_from([13, 48, 64, 79, 95, 119])),
        st.tuples(st.just("read"), st.sampled_from([GOOD, evolve(GOOD, energy_mj=2 * 10**9), evolve(GOOD, index=3)])),
        st.tuples(st.just("wait"), st.sampled_from([1.0, APART_S, DAY_S, 40 * DAY_S])),
        st.tuples(st.just("prune"), st.none()),
        st.tuples(st.just("reset"), st.none()),
        st.tuples(st.just("reboot"), st.none()),
        st.tuples(st.just("clear"), st.sampled_from(["xid 79", "xid 48", "xid 119", INSPECTION, "xid 13"])),
    ),
    max_size=25,
)


@given(acts)
def test_what_excludes_vanishes_only_when_its_clearing_condition_is_met(some):
    one, now, boot = read(Health(CARD), GOOD, NOW), NOW, 1
    for act, what in some:
        before = {c for c, e in of(one, now, f"b{boot}").items() if e.severity is Severity.EXCLUDED}
        match act, what:
            case "xid", int(code):
                one = heard(one, f"xid {code}", now, f"b{boot}")
            case "read", Sample() as sample:
                one = read(one, sample, now)
            case "wait", float(seconds):
                now += seconds
            case "prune", _:
                one = pruned(one, now, f"b{boot}")
            case "reset", _:
                one = read(read(one, GOOD, now), evolve(GOOD, energy_mj=1), now)
            case "reboot", _:
                boot += 1
            case "clear", str(cause):
                after = cleared(one, cause)
                assert after is not None
                one = after
        gone = before - set(of(one, now, f"b{boot}"))
        for cause in gone:
            clearing = rule_of(cause).clearing
            may = {"clear"}
            may |= {"reboot"} if clearing in (Clearing.RESET, Clearing.REBOOT) else set()
            may |= {"reset"} if clearing is Clearing.RESET else set()
            assert act in may, f"{cause} vanished by {act}"
            assert act != "clear" or cause == what

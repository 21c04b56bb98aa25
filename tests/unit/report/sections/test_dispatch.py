"""Who serves which shape, and what serves a workload against each peer."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from dispatch_sample import (
    COMPARISONS,
    ONE,
    SOME,
    A,
    B,
    comparison,
    write_project,
    write_session,
)
from rich.console import Console

from tests.support.drawings import Page, shown
from tuner.model.trial import PeerTrial, Result, Status
from tuner.report.data import load
from tuner.report.html import render_report
from tuner.report.sections import dispatch as section
from tuner.report.sections.summary import headline
from tuner.report.terminal import json_of, results_table
from tuner.session.session import Session


@pytest.fixture
def dispatch(tmp_path):
    """Make the report of a session with these comparisons."""

    def make(comparisons=COMPARISONS, **changes):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        space = write_project(folder / "project")
        return load(write_session(folder / "session", space, comparisons, **changes))

    return make


@pytest.mark.parametrize(
    ("comparisons", "text"),
    [
        (
            COMPARISONS,
            "2 variants serve 3 of 3 tuned workloads, the fewest within 1 % of all.",
        ),
        (
            (comparison(ONE, {A: 5.0}),),
            "1 variant serves 1 of 3 tuned workloads, the fewest within 1 % of all, "
            "production's 2.",
        ),
        (
            (comparison(ONE, {A: 10.0}),),
            "Production's serves all of 3 tuned workloads: no winner is proved faster.",
        ),
    ],
)
def test_it_says_how_few_serve_how_many(dispatch, comparisons, text):
    assert section.dispatch_summary(dispatch(comparisons).dispatch) == text


def test_the_page_says_who_serves_what_and_what_might_save_a_variant(dispatch, golden):
    two = (comparison(ONE, {A: 5.0}), comparison(SOME, {B: 4.0}))
    pages = [shown(render_report(dispatch(one)), "Dispatch") for one in (COMPARISONS, two)]
    golden("dispatch.txt", "\n\n".join(pages))


def test_a_curve_says_what_1_2_and_all_variants_gain(dispatch):
    said = json_of(dispatch())["dispatch"]
    assert (said["variants"], said["choice"]) == (2, "the fewest within 1 % of all")
    assert [point["variants"] for point in said["curve"]] == [1, 2, 3]
    assert [point["chosen"] for point in said["curve"]] == [False, True, False]
    gains = [point["speedup"] for point in said["curve"]]
    assert gains == sorted(gains)
    text = shown(render_report(dispatch()))
    assert "What few variants gain over the baseline" in text
    assert section.curve_chart(dispatch((comparison(ONE, {A: 5.0}),)).dispatch) is None


def test_what_serves_in_the_winners_place_is_compared_with_that(dispatch):
    first, some, *others = COMPARISONS
    # C wins by the rounds that choose, and B, which serves two shapes, is ahead in the others.
    late = tuple((row[0], row[1], 0.98 * row[2], row[3]) for row in some.rounds[10:])
    ahead = replace(some, rounds=(*some.rounds[:10], *late))
    page = shown(render_report(dispatch((first, ahead, *others))), "Dispatch")
    assert "T=64 D=4096 v2 1.01x [1.01, 1.01] faster" in page
    assert "chance may put another one ahead" in page
    assert "T=1024 D=4096 v2 the winner" in page


@pytest.mark.parametrize(
    "changes", [{"comparisons": ()}, {"environment": {"architecture": "x86_64"}}]
)
def test_without_comparisons_or_a_gpu_there_is_no_section(dispatch, changes):
    data = dispatch(**changes)
    assert data.dispatch is None
    assert "Dispatch" not in Page(render_report(data)).headings


NAMES = ("pytorch", "sgl-kernel", "flashinfer", "broken")


def with_peers(data, factors=(4.0, 1.5)):
    """Give every result two peers that take so many times as long, one absent and one wrong."""
    comparisons, peers = [], []
    for index, result in enumerate(data.results):
        times = [factor * result.tuned_us for factor in factors]
        rounds = tuple(
            (result.baseline_us, result.tuned_us * (1 + 0.001 * (k % 3)), *times) for k in range(30)
        )
        comparison = data.comparisons[index]
        comparisons.append(replace(comparison, rounds=rounds, peers=NAMES[:2]))
        peers += [PeerTrial(result.workload, name, Status.CORRECT) for name in NAMES[:2]]
        peers.append(
            PeerTrial(result.workload, "flashinfer", Status.NOT_RECORDED, "No module\nnamed x")
        )
    wrong = "out[0] is 1, expected 2 <3>"
    peers.append(PeerTrial(data.results[0].workload, "broken", Status.INCORRECT, wrong))
    return replace(data, recorded=False, comparisons=tuple(comparisons), peers=tuple(peers))


@pytest.fixture
def found(data):
    return section.peers_on(with_peers(data))


def printed(table, width: int = 100) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_each_peer_is_put_against_what_serves(data, found):
    assert len(found) == len(data.results)
    one = found[0]
    pytorch, sgl, absent, broken = one.peers
    assert pytorch.time_us == pytest.approx(4.0 * data.results[0].tuned_us)
    assert pytorch.speedup == pytest.approx(4.0, rel=0.002)
    low, high = pytorch.interval
    assert 3.98 < low <= pytorch.speedup <= high < 4.01
    assert one.best is sgl
    assert (absent.status, absent.time_us, absent.interval) == (Status.NOT_RECORDED, None, None)
    assert (broken.status, broken.reason) == (Status.INCORRECT, "out[0] is 1, expected 2 <3>")


def test_the_rounds_that_chose_among_finalists_do_not_report(data):
    told = with_peers(data)
    first, *others = told.comparisons
    second = replace(first.finalists[0], config=data.trials[-1].config)
    rounds = tuple(
        (r[0], r[1] * (2.0 if k < 7 else 1.0), r[1] * 2, *r[2:]) for k, r in enumerate(first.rounds)
    )
    both = replace(first, finalists=(*first.finalists, second), rounds=rounds)
    one = section.peers_on(replace(told, comparisons=(both, *others)))[0]
    assert one.served_us == pytest.approx(data.results[0].tuned_us, rel=0.002)
    assert one.peers[0].interval[0] > 3.9


def test_what_overlaps_its_neighbours_is_compared_without_that_too(data):
    told = with_peers(data)
    isolated = [
        replace(one, isolated_us=(None, 1.2 * result.tuned_us, None, None))
        for one, result in zip(told.comparisons, told.results, strict=True)
    ]
    told = replace(told, comparisons=tuple(isolated))
    found = section.peers_on(told)
    assert found[0].best.isolated_speedup == pytest.approx(1.25, rel=0.002)
    assert "1.50x as fast (1.25x without overlapping the calls" in section.peers_summary(found)
    assert "isolated 2.4" in render_report(told)


def test_where_the_baseline_wins_it_is_what_serves(data):
    told = with_peers(data)
    kept = replace(told.results[0], baseline_wins=True)
    one = section.peers_on(replace(told, results=(kept, *told.results[1:])))[0]
    assert one.served is None
    assert one.served_us == pytest.approx(kept.baseline_us)


def test_a_workload_that_was_compared_before_there_were_peers_has_no_times(data):
    told = replace(with_peers(data), comparisons=data.comparisons)
    found = section.peers_on(told)
    assert {peer.time_us for one in found for peer in one.peers} == {None}
    assert section.peers_summary(found) == ""
    assert section.peers_chart(found) is None
    assert found[0].peers[0].trouble(recorded=False) == "-"


def test_the_summary_tells_the_mean_and_where_a_peer_is_ahead(data):
    assert section.peers_summary(section.peers_on(with_peers(data))) == (
        "1.50x as fast as the best peer of each workload (geometric mean over 10 tuned); as fast "
        "or faster, within 2.0 %, on 10 of 10."
    )
    behind = section.peers_summary(section.peers_on(with_peers(data, factors=(4.0, 0.9))))
    assert behind.startswith("0.90x as fast as the best peer")
    assert "on 0 of 10; behind on T=1 D=11008, T=1 D=14336, T=16 D=11008 and 7 more." in behind


@pytest.mark.parametrize(
    ("factor", "said"),
    [(1.4, "1.40x over the best peer"), (0.17, "5.89x slower than the best peer")],
)
def test_the_headline_says_slower_where_the_best_peer_is_faster(data, factor, said):
    assert headline(with_peers(data, factors=(4.0, factor))).headline.startswith(said)


def test_what_stood_against_a_peer_is_told_once(found):
    assert section.peers_troubles(found, recorded=False) == [
        "flashinfer not installed: No module",
        "broken incorrect on T=1 D=11008: out[0] is 1, expected 2 <3>",
    ]
    assert section.peers_troubles(found, recorded=True)[0].startswith(
        "flashinfer not in the recording: "
    )
    first, second, _ = section.peers_lines(found, recorded=False)
    assert first.startswith("peers          1.50x as fast as")
    assert second == "               flashinfer not installed: No module"


def test_what_a_peer_fails_beside_ordinary_inputs_is_told_with_its_time(data):
    told = with_peers(data)
    noted = [
        replace(one, reason="fails extreme: out[0] is 0") if one.name == "sgl-kernel" else one
        for one in told.peers
    ]
    told = replace(told, peers=tuple(noted))
    found = section.peers_on(told)
    assert all(one.best.name == "sgl-kernel" for one in found)
    line = (
        "sgl-kernel timed, though not within the tolerance on all inputs: "
        "fails extreme: out[0] is 0"
    )
    assert line in section.peers_troubles(found, recorded=False)
    page = shown(render_report(told), "Peers")
    assert page.count("not right on all inputs") == len(found)


def test_the_terminal_names_the_best_peer(data, found):
    text = printed(results_table(data.results, found))
    assert "best peer" in text
    assert text.count("sgl-kernel") == len(data.results)
    assert "1.50x" in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100
    assert "best peer" not in printed(results_table(data.results))


def test_the_page_and_the_object_have_every_peer(data, golden):
    told = with_peers(data, (4.0, 0.5))
    golden("peers.txt", shown(render_report(told), "Peers"))
    golden("peers.json", json.dumps(json_of(told)["workloads"][0], indent=1))
    assert "Peers" not in Page(render_report(data)).headings


@pytest.fixture
def session(tmp_path):
    """The folder of a session whose dispatch serves two variants, with a peer in all rounds."""
    space = write_project(tmp_path / "project")
    comparisons = [
        replace(one, rounds=tuple((*row, 8.0) for row in one.rounds), peers=("pytorch",))
        for one in COMPARISONS
    ]
    folder = write_session(tmp_path / "session", space, comparisons)
    with Session.open(folder) as made:
        for one in comparisons:
            made.append(PeerTrial(one.workload, "pytorch", Status.CORRECT))
    return folder


def test_what_the_dispatch_serves_counts_and_not_the_winner_of_a_workload(session):
    data = load(session)
    assert data.dispatch is not None
    results = [result_of(entry) for entry in data.dispatch.table.entries]
    found = section.peers_on(replace(data, results=tuple(results)))
    assert [one.served for one in found] == [
        entry.kernel.variant for entry in data.dispatch.table.entries
    ]
    assert any(one.served != result.variant for one, result in zip(found, results, strict=True))
    assert [one.server for one in found] == ["tuned", "tuned, in the winner's place", "tuned"]
    text = printed(results_table(results, found))
    assert [f"{8.0 / one.served_us:.2f}x" in text for one in found] == [True, False, True]
    for one, entry in zip(found, data.dispatch.table.entries, strict=True):
        assert one.served_us == pytest.approx(entry.compared.time_us)
        assert one.peers[0].speedup == pytest.approx(8.0 / one.served_us)


def result_of(entry):
    """The result that a run would have: the fastest on the workload alone."""

    best = entry.best
    return Result(
        workload=entry.workload,
        baseline_us=best.baseline_us,
        tuned_us=best.time_us,
        speedup=best.speedup,
        interval=best.interval,
        paired=True,
        roofline_share=0.5,
        config=best.variant.config,
        resources=None,
        occupancy=None,
        candidate=best.variant.candidate,
    )

"""The report is one closed, well-formed file whose every outside text is escaped."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace

import pytest

from tests.support.drawings import Page, shown
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Check, Resources, Status, Trial
from tuner.report.data import ReportData
from tuner.report.html import render_report, write_report
from tuner.report.rounds import Spent

ATTACK = '</style></pre><script>alert("1")</script><img src=x onerror=alert(2)>'


def widths(page: Page, css_class: str) -> list[int]:
    """Count the columns of every row of a table, with cells that reach over several."""
    start = page.elements.index(("table", {"class": css_class}))
    found: list[int] = []
    reaching: list[int] = []
    for tag, attributes in page.elements[start + 1 :]:
        if tag == "table":
            break
        if tag == "tr":
            reaching = [rows - 1 for rows in reaching if rows > 1]
            found.append(len(reaching))
        if tag in {"th", "td"}:
            columns = int(attributes.get("colspan") or 1)
            found[-1] += columns
            reaching += [int(attributes.get("rowspan") or 1)] * columns
    return found


@pytest.fixture(scope="module")
def html(data) -> str:
    return render_report(data)


@pytest.fixture(scope="module")
def page(html) -> Page:
    return Page(html)


@pytest.fixture(scope="module")
def rounds_page(with_rounds) -> Page:
    return Page(render_report(with_rounds))


def test_a_recording_is_told_whole(html, golden):
    golden("recording.txt", shown(html))


def test_rounds_are_told_whole(with_rounds, golden):
    golden("rounds.txt", shown(render_report(replace(with_rounds, session="s/1", seconds=0.0))))


def test_a_run_on_a_cpu_shows_nothing_that_is_a_gpus(data, golden):
    results = tuple(replace(r, resources=Resources(None), occupancy=None) for r in data.results)
    cpu = replace(
        data, on_cpu=True, recorded=False, device="host CPU", results=results, streaming_gbps=None
    )
    golden("cpu.txt", shown(render_report(cpu)))


def test_what_is_special_of_a_result_is_marked(data, golden):
    first, second, third, *others = (replace(one, paired=False) for one in data.results)
    results = (
        replace(first, isolated_us=2.5, isolated_baseline_us=3.25),
        replace(second, speedup=0.8, interval=(0.79, 0.81)),
        replace(third, speedup=0.8, interval=(0.79, 0.81), baseline_wins=True),
        *others,
    )
    sections = ("Workloads", "How the numbers were taken")
    golden("special.txt", shown(render_report(replace(data, results=results)), *sections))


def test_nothing_is_loaded_from_outside(page, html):
    assert page.tags().isdisjoint({"iframe", "object", "embed", "img", "form", "base"})
    for _, attributes in page.elements:
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("href", "src", "xlink:href"):
            assert attributes.get(name, "data:").startswith(("data:", "#"))
    assert "url(" not in html
    assert "@import" not in html


def test_the_policy_allows_exactly_the_style_sheet_and_the_script_that_sorts(page, html):
    (policy,) = [
        attributes["content"] or ""
        for tag, attributes in page.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    digests = []
    for tag in ("style", "script"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digests.append(base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode())
    style, script = digests
    rules = f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; "
    assert policy.startswith(rules)
    assert "unsafe" not in policy


def test_charts_and_tables_are_named_for_screen_readers(page):
    charts = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert 4 <= len(charts) <= 12
    assert all(chart.get("aria-label") and chart["role"] == "img" for chart in charts)
    assert all(
        attributes.get("scope") in {"col", "row"}
        for tag, attributes in page.elements
        if tag == "th"
    )
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    "where", ["reason", "config", "top", "source", "environment", "command", "note", "check"]
)
def test_text_from_outside_is_escaped(data, where):
    trial = data.records[0][0]
    changes = {
        "reason": {"records": ((replace(trial, status=Status.COMPILE, reason=ATTACK), 0.0),)},
        "config": {"results": (replace(data.results[0], config=Config.of({ATTACK: ATTACK})),)},
        "top": {"records": ((replace(trial, config=Config.of({ATTACK: ATTACK})), 0.0),)},
        "source": {"tuned_sources": {"T=1": f"new {ATTACK}"}, "baseline_source": ATTACK},
        "environment": {"environment": {ATTACK: ATTACK}},
        "command": {"command": ATTACK, "kernel": ATTACK, "device": ATTACK},
        "note": {"notes": (ATTACK,)},
        "check": {
            "checks": (
                Check(ATTACK, trial.workload, data.results[0].config, False, ATTACK, ATTACK),
            )
        },
    }
    page = Page(render_report(replace(data, **changes[where])))
    assert [tag for tag, _ in page.elements].count("script") == 1, "the one that sorts"
    assert "img" not in page.tags()
    assert "alert(2)" in page.text


def bare(**fields: object) -> ReportData:
    return replace(ReportData("k", "GPU", False), **fields)


WORKLOAD = Workload.of({"T": 1})
REJECTED = Trial("t", WORKLOAD, Config.of({"a": 1}), Status.RESOURCE_LIMIT, "too many registers")


def test_an_empty_session_is_a_report_that_says_so():
    page = Page(render_report(bare()))
    assert "Reproduce" not in page.headings
    assert "No result: no config was tried." in page.text
    assert "svg" not in page.tags()


def test_a_session_of_rejections_shows_the_reasons():
    page = Page(render_report(bare(records=((REJECTED, 0.0),) * 3)))
    assert "No result: none of 3 trials was correct." in page.text
    assert "too many registers" in page.text
    assert "No config was both correct and fully timed." in page.text
    assert "0 correct trials; at least 20 are needed" in page.text


def test_one_trial_on_one_workload_is_enough(data):
    one = replace(
        data,
        records=data.records[:1],
        results=data.results[:1],
        comparisons=(),
        tuned_sources={},
    )
    page = Page(render_report(one))
    assert "on 1 tuned workload" in page.plain
    assert "There is no tuned source." in page.text
    assert "at least 0 times" not in page.text


def test_an_interrupted_run_without_a_baseline_still_converges(data):
    page = Page(render_report(replace(data, results=(), baselines_us={}, finished=False)))
    assert "No result yet" in page.text
    assert "How many trials did it take?" in page.text
    assert "How much faster?" not in page.text


def test_unknown_traffic_leaves_the_roofline_out(data):
    made = render_report(replace(data, traffic_bytes={}))
    assert "Achieved memory rate" not in made
    assert "GB/s</button>" not in made


def test_operations_add_the_classic_roofline(data, page):
    operations = {key: 2 * size for key, size in data.traffic_bytes.items()}
    labels = [
        a.get("aria-label")
        for _, a in Page(render_report(replace(data, operations=operations))).elements
    ]
    assert "Roofline: rate against arithmetic intensity" in labels
    assert "operations per byte" not in page.text


def test_a_winner_that_failed_a_check_is_never_called_faster(data):
    first = data.results[0]
    check = Check(
        "edge_cases", Workload.of({"T": 1, "D": 8}), first.config, False, "y[0] is 3", "L4"
    )
    text = Page(render_report(replace(data, checks=(check,)))).plain
    visible = text.split("tuning report", 1)[1].strip()
    accused = (
        "NOT TO BE TRUSTED: what was tuned for T=1 D=11008, T=1 D=14336, T=16 D=11008 and 10 more "
        "failed a check. edge_cases on T=1 D=8: y[0] is 3."
    )
    assert visible.startswith("RECORDED on NVIDIA H200, 2026-11-20. scale ")
    assert accused in visible.partition("Workloads Baseline")[0]
    assert "not to be trusted" in visible
    assert "faster than the baseline" not in text
    assert "1.70x [1.69, 1.71] failed a check" in text
    assert "failed y[0] is 3" in text


def test_what_no_round_spent_has_no_column(with_rounds):
    def told(spend) -> str:
        rounds = tuple(replace(one, spent=spend(one.spent)) for one in with_rounds.rounds)
        return Page(render_report(replace(with_rounds, rounds=rounds))).plain

    no_model = told(lambda spent: Spent())
    assert "Tokens" not in no_model
    assert "In all" not in no_model
    without_prices = told(lambda spent: replace(spent, cost=None, unpriced=spent.replies))
    assert "Tokens" in without_prices
    assert "Cost" not in without_prices


def test_every_result_names_its_columns_for_a_narrow_screen(page):
    start = page.elements.index(("table", {"class": "listed results sorts"}))
    end = next(n for n, (tag, _) in enumerate(page.elements) if n > start and tag == "table")
    cells = [attributes for tag, attributes in page.elements[start:end] if tag == "td"]
    assert cells
    assert all(cell.get("data-label") for cell in cells)


def test_axes_that_all_workloads_share_are_named_once_where_names_are_long(data):
    many = {f"a_long_name_{n}": 128 for n in range(8)}
    results = [
        replace(r, workload=Workload.of({"T": 2**n, **many})) for n, r in enumerate(data.results)
    ]
    made = shown(render_report(replace(data, results=tuple(results), tuned_sources={})))
    assert "Every workload has a_long_name_0=128 a_long_name_1=128" in " ".join(made.split())


def test_every_row_of_a_table_has_as_many_cells_as_its_head(rounds_page):
    assert set(widths(rounds_page, "listed rounds")) == {12}


def test_the_picture_of_the_tree_is_described_to_screen_readers(rounds_page):
    (tree,) = [a for tag, a in rounds_page.elements if tag == "svg" and "aria-describedby" in a]
    ids = [a.get("id") for _, a in rounds_page.elements]
    assert ids.count(tree["aria-describedby"]) == 1
    assert "Round 3, r3 built on r1: 2.60x, wins on 2 workloads." in rounds_page.plain


def test_a_check_failed_by_another_candidates_equal_config_accuses_nobody(with_rounds):
    first = with_rounds.results[0]
    check = Check("verify", first.workload, first.config, False, "off", "L4", candidate="r5")
    text = Page(render_report(replace(with_rounds, checks=(check,)))).plain
    assert "failed a check. " not in text.partition("Workloads")[0]
    assert "[1.83, 1.87] failed a check" not in text


def test_what_an_agent_wrote_is_text_in_the_page(with_rounds):
    third = with_rounds.rounds[2]
    plan = replace(third.record.idea, change=ATTACK, hypothesis=ATTACK, reference=ATTACK)
    record = replace(third.record, idea=plan, problems=(ATTACK, "\udcff\x00"))
    profile = with_rounds.profiles[0]
    finding = replace(profile.findings[0], text=ATTACK, advice=ATTACK, topic=ATTACK)
    candidates = tuple(replace(one, template=f"\n{ATTACK}") for one in with_rounds.candidates)
    attacked = replace(
        with_rounds,
        rounds=(replace(third, record=record),),
        profiles=(replace(profile, findings=(finding,), reason=ATTACK),),
        candidates=candidates,
    )
    page = Page(render_report(attacked))
    assert [tag for tag, _ in page.elements].count("script") == 1, "the one that sorts"
    assert "img" not in page.tags()
    assert page.plain.count('<script>alert("1")</script>') >= 7


def test_a_long_run_of_rounds_stays_under_a_megabyte(with_rounds):
    second = with_rounds.rounds[1]
    record = replace(second.record, problems=("error " * 2000,) * 4)
    many = tuple(replace(second, record=replace(record, number=number)) for number in range(1, 41))
    assert len(render_report(replace(with_rounds, rounds=many)).encode()) < 1_000_000


def test_odd_characters_are_written(data, tmp_path):
    odd = "\udcff\x00\x1b[31m\u2028 µ"
    trial = replace(data.records[0][0], status=Status.COMPILE, reason=odd)
    path = tmp_path / "new" / "report.html"
    write_report(replace(data, kernel=odd, records=((trial, 0.0),)), path)
    Page(path.read_text(encoding="utf-8"))
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_a_large_session_stays_under_a_megabyte(data):
    source = "\n".join(f"  float value_{i} = load(input + {i} * stride);" for i in range(900))
    sources = {key: f"{source}\n// {key}" for key in data.traffic_bytes}
    records = data.records * 12
    large = replace(data, records=records, tuned_sources=sources)
    assert len(render_report(large).encode()) < 1_000_000


def test_the_first_screen_answers_how_much_how_sure_how_far_what_next_and_what_changed(data):
    text = Page(render_report(data)).plain.partition("Workload Baseline")[0]
    for question in (
        "1.30x to 1.70x over 10 workloads.",
        "How sure?10 of 10 proved",
        "How far from the roofline?",
        "What next? Put it to use: tune export",
        "What changed? block_size=256 vector_bytes=16 keep_row=false",
        "+__global__ void scale(float4* x) {",
    ):
        assert question in text, question
    assert "-// baseline" not in text, "comments are no change of the code"


def test_a_table_sorts_and_has_a_column_only_for_the_parameters_that_vary(data):
    configs = [{"block_size": 64 * (1 + n % 2), "unroll": 4} for n in range(len(data.results))]
    results = [
        replace(one, config=Config.of(config))
        for one, config in zip(data.results, configs, strict=True)
    ]
    operations = {key: 10 * size for key, size in data.traffic_bytes.items()}
    made = render_report(replace(data, results=tuple(results), operations=operations))
    (head,) = re.findall(r'<table class="listed results sorts">\n<thead>(.*?)</thead>', made)
    heads = re.findall(r'<button type="button">(.*?)</button>', head)
    assert "block_<wbr>size" in heads
    assert not any("unroll" in one for one in heads)
    assert {"TFLOP/s", "GB/s"} < {*heads}
    first = results[0]
    gbps = data.traffic_bytes[first.workload.key] / first.tuned_us / 1e3
    assert f'data-label="GB/s" data-value="{gbps:.6g}">{gbps:,.0f}</td>' in made
    assert f'data-label="TFLOP/s" data-value="{gbps / 100:.6g}">' in made


def test_what_is_slower_is_red(data):
    slower = replace(data.results[0], speedup=0.8, interval=(0.79, 0.81))
    made = render_report(replace(data, results=(slower, *data.results[1:])))
    assert 'class="speedup slower"' in made
    css = made.partition("<style>")[2].partition("</style>")[0]
    assert "td.slower .speed, td.slower .soft { color: var(--bad); }" in css
    assert "prefers-color-scheme: dark" in css


def test_every_section_is_in_the_contents_and_is_there(data, with_rounds):
    for run in (data, with_rounds):
        page = Page(render_report(run))
        ids = {a["id"] for _, a in page.elements if "id" in a}
        named = [a["href"] for tag, a in page.elements if tag == "a"]
        assert len(named) >= 7
        assert all(link.removeprefix("#") in ids for link in named)


def test_on_a_cpu_no_table_and_no_card_has_a_ratio(data):
    results = tuple(replace(r, resources=Resources(None), occupancy=None) for r in data.results)
    made = shown(render_report(replace(data, on_cpu=True, recorded=False, results=results)))
    before_method, _, _ = made.partition("How the numbers were taken")
    assert not re.search(r"\d\.\d+x", before_method)
    assert "Speedup" not in before_method

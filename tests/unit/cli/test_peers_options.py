"""`--peers` and `--peer NAME`: what is asked for, and what cannot be had."""

from __future__ import annotations

import click
import pytest

from tuner.app.plan import new_plan
from tuner.app.session_plan import manifest_of, resumed_plan
from tuner.app.trust import trust
from tuner.cli import record_command, run_command
from tuner.model.errors import KernelError, SessionError
from tuner.session.session import Session

PEERS = """
def pytorch(tensors, axes):
    import torch
    return {"out": 2.0 * tensors["in"]}

peers = {"pytorch": pytorch, "other": pytorch}
"""


@pytest.fixture
def kernel(project):
    """A kernel with two peers."""
    reference = project / "scale.py"
    reference.write_text(reference.read_text() + PEERS)
    return project / "scale.cu"


def space_of(kernel):
    return {"space": kernel.with_suffix(".yaml")}


def test_all_or_some_or_none_are_asked_for(kernel):
    assert new_plan(kernel, space_of(kernel)).config.peers == ()
    assert new_plan(kernel, {**space_of(kernel), "peers": True}).config.peers == (
        "pytorch",
        "other",
    )
    config = new_plan(kernel, {**space_of(kernel), "peers": ["other"]}).config
    assert config.peers == ("other",)


def test_an_expression_has_peers_that_nobody_named(kernel):
    space = kernel.with_suffix(".yaml")
    text = space.read_text()
    assert "reference: scale.py" in text
    space.write_text(text.replace("reference: scale.py", 'reference: {torch: "torch.ones(N)"}'))
    found = new_plan(kernel, {**space_of(kernel), "peers": True}).config.peers
    assert found == ("eager", "torch.compile", "torch.compile-max")
    with pytest.raises(KernelError, match="has no peer named 'pytorch'"):
        new_plan(kernel, {**space_of(kernel), "peers": ["pytorch"]})


@pytest.mark.parametrize("command", [run_command.command, record_command.command])
def test_the_kernel_may_follow_the_option(command):
    parser = command.make_parser(click.Context(command))
    values, _, _ = parser.parse_args(["--peers", "kernel.cu", "--peer", "a", "--peer", "b"])
    assert (values["source"], values["peers"], values["peer"]) == ("kernel.cu", True, ["a", "b"])


class TestResuming:
    @pytest.fixture
    def kept(self, kernel, tmp_path):
        """The manifest of a session that was started with one peer."""
        plan = new_plan(kernel, {**space_of(kernel), "peers": ["other"], "device": "recorded"})
        manifest = manifest_of(plan, ("tune", "scale.cu"))
        trust(plan.spec.reference)
        Session.create(tmp_path / "session", manifest, {}).close()
        with Session.open(tmp_path / "session", read_only=True) as session:
            return session.directory, session.manifest

    def test_takes_the_peers_of_the_session_unless_others_are_named(self, kept):
        assert resumed_plan(*kept, None, {}).config.peers == ("other",)
        again = resumed_plan(*kept, None, {"peers": True})
        assert set(again.config.peers) > {"other"}
        assert resumed_plan(*kept, None, {"trials": 7}).config.trials == 7

    def test_keeps_to_what_the_session_thinks_slow(self, kept):
        assert resumed_plan(*kept, None, {}).config.prune
        with pytest.raises(SessionError, match="--no-prune: not what the session was started with"):
            resumed_plan(*kept, None, {"prune": False})


def test_without_prune_the_plan_has_all_that_the_constraints_allow(kernel):
    space = kernel.with_suffix(".yaml")
    space.write_text(f"{space.read_text()}prune: [N > 0]\n")
    slow = new_plan(kernel, {**space_of(kernel), "prune": False, "device": "recorded"})
    assert (slow.config.prune, slow.space.prune) == (False, ())
    assert len(new_plan(kernel, {**space_of(kernel), "device": "recorded"}).space.prune) == 1


def test_a_user_sees_one_message_and_exit_code_2(kernel, tune, monkeypatch):
    monkeypatch.chdir(kernel.parent)
    space = kernel.with_suffix(".yaml")
    result = tune(kernel, "--space", space, "--peers", "--device", "host", "--store", "none")
    assert result.exit_code == 2
    assert "peers run on a GPU only" in result.stderr
    assert not (kernel.parent / "sessions").exists()

"""What a small environment lacks is said, with what brings it; a run needs none of it."""

from __future__ import annotations

import configparser
import sys
from pathlib import Path

import pytest

from tuner import plugins
from tuner.model.errors import InputError
from tuner.report.terminal import data_frame

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("kernel_tuner", "kernel-tuner", lambda: plugins.load(plugins.SEARCHERS, "kernel_tuner")),
        ("pandas", "pandas", lambda: data_frame([])),
    ],
)
def test_what_an_extra_brings_is_named_with_the_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, extra: str, use
) -> None:
    searcher = "tuner.extensions.study.kernel_tuner_searcher"
    for name in [name for name in sys.modules if name.startswith(package) or name == searcher]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"'{package}' is not installed") as error:
        use()
    assert f"pip install 'kernel-tune[{extra}]'" in str(error.value)
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["options.extras_require"][extra].strip().startswith(package)
    assert package not in setup["options"]["install_requires"]

"""An answer has to be whole."""

from __future__ import annotations

import pytest

from tuner.agent.replies import require_whole
from tuner.model.errors import ReplyError


def test_a_whole_text_passes() -> None:
    require_whole("int a;  // the last of them\n", "template")
    require_whole("parameters: {a: [1, 2]}  # all\n", "space")


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (
            "template",
            "int a;\n// ... rest unchanged\n",
            "line 2 of the template stands for text that is left out: '// ... rest unchanged'; "
            "write the whole template",
        ),
        (
            "space",
            "# ... as before\n",
            "line 1 of the space stands for text that is left out: '# ... as before'; "
            "write the whole space",
        ),
    ],
)
def test_a_text_that_leaves_lines_out_is_refused_by_line(kind, text, message) -> None:
    with pytest.raises(ReplyError) as caught:
        require_whole(text, kind)
    assert caught.value.message == message

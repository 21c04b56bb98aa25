from pathlib import Path
import json
import pytest
from engine_wheels import SGLANG
from installed_plugins import installed, loaded, written

@pytest.mark.slow
def test_steps(tmp_path, compiler):
    folder = written("sglang", Path("/tmp/w/attnplug-scratch/pl"), compiler, "decode_attention")
    path = installed(folder), SGLANG.packages(), SGLANG.wheel()
    found, log = loaded("sglang", *path, part="--steps=1")
    print(json.dumps(found, indent=1), log[-3000:])
    assert 0

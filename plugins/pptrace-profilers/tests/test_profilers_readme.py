"""The rules that the README shows are read, and say what it says."""

from __future__ import annotations

import re
from pathlib import Path

from pptrace_profilers.rules.file import read_rules

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_rules_tell_what_it_says(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "rules.yaml"
    path.write_text(text, encoding="utf-8")

    found = read_rules(path)

    names = ["QQ:0F3", "QQ:(0F3;7B1)OVERLAP_F_B", "bwd_4", "grad_sync 5"]
    assert [str(found.rules.action(name)) for name in names] == [
        "0F3",
        "(0F3;7B1)OVERLAP_F_B",
        "2B4",
        "5REDUCE_GRAD",
    ]
    args = {"op": "isend", "dst": 3, "mb": 1, "nbytes": 8, "dir": "F"}
    message = found.rules.meaning("p2p", args)
    assert message is not None
    assert (str(message.action), message.peer, message.size_bytes) == ("2SEND_F1", 3, 8)
    assert found.rank is not None
    assert found.rank.read("worker 12") == 12
    assert found.rules.communication.search("a halo_exchange")

"""``pptrace network`` tells the capacity of each link in bytes per second: as text, as JSON and in the picture."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from click.testing import CliRunner

from pptrace.cli.network import command

if TYPE_CHECKING:
    from pathlib import Path

PICTURE = "cluster.svg"


def test_a_link_has_one_capacity_wherever_it_is_reported(tmp_path: Path) -> None:
    arguments = ["dgx-h100x2", "--between", "0,9", "-o", str(tmp_path / PICTURE)]

    text = CliRunner().invoke(command, arguments, catch_exceptions=False).stdout
    document = json.loads(CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False).stdout)
    picture = (tmp_path / PICTURE).read_text(encoding="utf-8")

    # NVLink 4 has 18 links of 25 GB/s, of which 82.4 % is reached
    rates = {link["name"]: link["bytes_per_s"] for link in document["links"]}
    assert rates["node0/gpu0.up"] == 370_800_000_000
    assert "node*/gpu*.up 16 371 GB/s" in " ".join(text.split())
    assert "16 x node*/gpu*.up, 371 GB/s" in picture
    assert document["between"]["alone_bytes_per_s"] == 2 * document["between"]["shared_bytes_per_s"] + 1000

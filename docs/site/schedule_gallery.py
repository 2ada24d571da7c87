"""Hook of the site: the gallery of schedules, from the offers and docstrings of installed plugins.

``docs/schedules.md`` has a heading per schedule and a sentence on when to use it. The hook adds a picture,
figures, the order in the paper's notation, and a command.
"""

from __future__ import annotations

import inspect
import re
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

import pptrace
from pptrace.plugin import ConfigError, ConstraintError
from pptrace.report.table_drawing import draw, svg_text

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

    from pptrace.plugin import ScheduleOffer
    from pptrace.run.run import Run

PAGE = "schedules.md"
RANKS = 4
MICROBATCHES = 16
"""A number that every schedule takes on 4 ranks. STP needs at least 3p - 1, and HelixPipe multiples of 2p."""
HEADING = re.compile(r"^## ([\w-]+)\n", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the picture of every schedule."""
    for name, offer in offers().items():
        if not offer.searches:
            run = simulated(name)
            content = svg_text(draw(run.prepared.schedule), f"{name}: {RANKS} ranks, {MICROBATCHES} microbatches")
            files.append(File.generated(config, f"images/schedules/{name}.svg", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add to every section of the gallery what the offer and its module contain."""
    del config, files
    if page.file.src_uri != PAGE:
        return markdown
    known = offers()
    opening, *sections = HEADING.split(markdown)
    pairs = zip(sections[::2], sections[1::2], strict=True)
    parts = [f"## {name}\n\n{section(known[name], text.strip())}" for name, text in pairs]
    return "\n\n".join([opening.rstrip(), comparison(known), *parts]) + "\n"


def offers() -> dict[str, ScheduleOffer]:
    """Return the offered schedules by name, in the order of the registry."""
    return {name: provided.offer for name, provided in pptrace.Registry.load().schedules.items()}


def simulated(name: str) -> Run:
    """Simulate a schedule with unit costs and free messages, with the fewest chunks per rank that it takes."""
    sizes: dict[str, Any] = {"schedule": name, "pp": RANKS, "microbatches": MICROBATCHES, "p2p": "async"}
    try:
        return pptrace.simulate(**sizes)
    except (ConfigError, ConstraintError):
        return pptrace.simulate(**sizes, vp=2)


def chunks(run: Run) -> int:
    """Return the number of chunks that each rank computes."""
    return run.prepared.schedule.placement.stages // RANKS


def comparison(known: dict[str, ScheduleOffer]) -> str:
    """Return the table of all schedules, sorted by their bubble."""
    runs = {name: simulated(name) for name, offer in known.items() if not offer.searches}
    rows = [
        f"| [`{name}`](#{name}) | {chunks(run)} | {float(run.metrics.bubble):.2%} | {activations(run):.3g} |"
        for name, run in sorted(runs.items(), key=lambda item: item[1].metrics.bubble)
    ]
    return "| schedule | chunks per rank | bubble | activations |\n|---|---|---|---|\n" + "\n".join(rows)


def activations(run: Run) -> float:
    """Return the fullest rank's peak activations, in microbatches over the rank's whole share of the model."""
    return float(max(run.metrics.memory.peak_activations)) / chunks(run)


def section(offer: ScheduleOffer, use: str) -> str:
    """Return the section of one schedule."""
    source = f"<{offer.source}>" if offer.source.startswith("http") else offer.source
    parts = [offer.summary]
    sizes = f"--pp {RANKS} --microbatches {MICROBATCHES}"
    if not offer.searches:
        run = simulated(offer.name)
        sizes += f" --vp {chunks(run)}" if run.prepared.resolved.experiment.parallel.vp > 1 else ""
        figures = f"At this size the bubble is {float(run.metrics.bubble):.2%}, and the fullest rank keeps the "
        figures += f"activations of {activations(run):.3g} microbatches."
        picture = f"images/schedules/{offer.name}.svg"
        parts += [f"[![Table of {offer.name}]({picture})]({picture})", figures]
    parts += [
        use,
        f"**Sizes.** {offer.constraints}",
        f"**Source.** {source}",
        f"```bash\npptrace show {offer.name} {sizes}\n```",
        details("Order, bubble and memory", markdown_of(docstring(offer))),
    ]
    return "\n\n".join(parts)


def docstring(offer: ScheduleOffer) -> str:
    """Return the docstring of the module that builds a schedule."""
    build = offer.build
    while isinstance(build, partial):
        build = build.func
    return inspect.cleandoc(import_module(build.__module__).__doc__ or "")


def markdown_of(text: str) -> str:
    """Return a docstring as Markdown: literal blocks are fenced, and literals have one backtick."""
    paragraphs = text.replace("``", "`").split("\n\n")
    lines: list[str] = []
    is_literal = False
    for paragraph in paragraphs:
        if is_literal and not paragraph.startswith(" "):
            lines.append("```\n")
            is_literal = False
        lines.append(inspect.cleandoc(paragraph) if is_literal else paragraph.replace("::", ":"))
        lines.append("")
        if paragraph.endswith("::"):
            lines.append("```text")
            is_literal = True
    return "\n".join([*lines, "```"] if is_literal else lines)


def details(title: str, text: str) -> str:
    """Return a block that a reader can unfold."""
    indented = "\n".join(f"    {line}".rstrip() for line in text.splitlines())
    return f'??? note "{title}"\n\n{indented}'

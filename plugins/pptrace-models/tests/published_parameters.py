"""Published numbers of parameters of the model presets, and those that the cost model has in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.plugins.requests import CostRequest
from pptrace_models import memory
from pptrace_models.layer import shard
from pptrace_models.stages import summed

if TYPE_CHECKING:
    from pptrace_models.transformer import Transformer

__all__ = ["PUBLISHED", "Published", "count_parameters"]


def count_parameters(model: Transformer) -> int:
    """Return the number of parameters on a single device, without multi-token prediction."""
    whole = shard(model, CostRequest(ranks=1, stages=1, microbatches=1, sequence=1))
    layers = [memory.layer_parameters(model, whole, model.layer(index)) for index in range(model.layers)]
    ends = [
        memory.embedding_parameters(model, whole), memory.head_parameters(model, whole, with_embedding=True),
    ]  # fmt: skip
    return summed(memory.ParameterCounts(), [*ends, *layers]).total()


@dataclass(frozen=True, slots=True)
class Published:
    """A published number of parameters."""

    count: int
    """Parameters in the source."""
    source: str
    """``checkpoint``: elements of the published safetensors, as listings of Hugging Face's metadata state them;
    ``paper``; ``name`` of the model; ``release`` notes."""
    unit: int = 0
    """The last digit of a rounded number; 0 for an exact one."""
    part: str = ""
    """What the count has and presets do not count."""
    part_count: int = 0
    """Parameters of this part: from the listing, or from its shapes; negative if the count lacks it."""

    @property
    def text(self) -> str:
        """The count, its source, and the part that the preset does not count."""
        digits = len(str(self.count // self.unit)) if self.unit else 4
        part = f"; {self.part} {abs(self.part_count) / 1e9:.3g} B" if self.part else ""
        return f"{self.count / 1e9:.{max(digits, 2)}g} B ({self.source}{part})"


def _tensors(count: int, part: str = "", part_count: int = 0) -> Published:
    return Published(count, "checkpoint", part=part, part_count=part_count)


def _paper(billions: float, unit: float) -> Published:
    return Published(round(billions * 1e9), "paper", unit=round(unit * 1e9))


_MTP, _MTP_COPIES, _MTP_VISION = "MTP", "MTP with embedding and head", "MTP and vision"

# Multi-token prediction by its shapes is one more layer and a matrix of 2h x h. Some checkpoints repeat embedding
# and head there. DeepSeek-V4's has a window and no compressed keys; Nemotron 3's has attention and experts.
# FP8 checkpoints also have scales, less than 0.01 % of the elements.
PUBLISHED = {
    "gpt3-175b": _paper(175.0, 0.1),
    "llama3-8b": _tensors(8_030_261_248),
    "llama3-70b": _tensors(70_553_706_496),
    "llama3-405b": _tensors(405_853_388_800),
    "qwen2-12.1b": _paper(12.1, 0.1),
    "qwen2-26.3b": _paper(26.3, 0.1),
    "tab-128": _paper(26, 1),
    "llama2-7b": _tensors(6_738_415_616),
    "llama2-13b": _tensors(13_015_864_320),
    "llama2-70b": _tensors(68_976_648_192),
    # Scout and Maverick have the same encoder and projector.
    "llama4-maverick": _tensors(401_583_781_376, "vision", 871_932_416),
    "llama4-scout": _tensors(108_641_793_536, "vision", 871_932_416),
    "mistral-7b": _tensors(7_248_023_552),
    "qwen2.5-7b": _tensors(7_615_616_512, "biases", 129_024),
    "qwen2.5-14b": _tensors(14_770_033_664, "biases", 344_064),
    "qwen2.5-32b": _tensors(32_763_876_352, "biases", 458_752),
    "qwen2.5-72b": _tensors(72_706_203_648, "biases", 819_200),
    "mixtral-8x7b": _tensors(46_702_792_704),
    "mixtral-8x22b": _tensors(140_630_071_296),
    "deepseek-v2-lite": _tensors(15_706_484_224),
    "deepseek-v2": _tensors(235_741_434_880),
    "deepseek-v3": _tensors(684_531_386_000, _MTP_COPIES, 13_463_404_544),
    "deepseek-v3.2": _tensors(685_396_921_376, _MTP_COPIES, 13_477_363_712),
    "deepseek-v4-flash": _tensors(290_944_616_402, _MTP, 6_609_000_000),
    # The listing counts two packed 4-bit weights as one element, and scales: 861.6 - 49.2 + 786.4 billion.
    "deepseek-v4-pro": Published(1_598_800_000_000, "checkpoint", 100_000_000, _MTP, 25_838_000_000),
    "kimi-k2": _tensors(1_026_470_731_056),
    "kimi-linear-48b-a3b": _tensors(49_122_681_728),
    "kimi-k3": _tensors(2_779_931_837_184),
    "qwen3-8b": _tensors(8_190_735_360),
    "qwen3-14b": _tensors(14_768_307_200),
    "qwen3-32b": _tensors(32_762_123_264),
    "qwen3-30b-a3b": _tensors(30_532_122_624),
    "qwen3-235b-a22b": _tensors(235_093_634_560),
    "qwen3-next-80b-a3b": _tensors(81_324_862_720, _MTP, 1_650_471_424),
    "qwen3.5-397b-a17b": _tensors(403_397_928_944, _MTP_VISION, 6_595_568_128 + 456_010_480),
    "qwen3.5-122b-a10b": _tensors(125_086_497_008, _MTP_VISION, 2_523_679_232 + 451_290_864),
    "qwen3.5-35b-a3b": _tensors(35_951_822_704, _MTP_VISION, 844_640_768 + 446_571_248),
    "qwen3.5-27b": _tensors(27_781_427_952, _MTP_VISION, 424_699_392 + 460_730_096),
    "gpt-oss-120b": _tensors(116_829_156_672),
    "gpt-oss-20b": _tensors(20_914_757_184),
    "glm-4.5": _tensors(358_337_791_296, _MTP_COPIES, 5_539_932_160),
    "glm-4.5-air": _tensors(110_468_824_832, _MTP_COPIES, 3_616_546_816),
    "glm-5": _tensors(753_864_139_008, _MTP, 9_952_901_632),
    "minimax-m1": _paper(456, 1),
    "minimax-m2": _tensors(228_703_644_928),
    "nemotron-h-8b": _tensors(8_100_852_736),
    "nemotron-h-47b": Published(47_000_000_000, "name", 1_000_000_000),
    "nemotron-h-56b": Published(56_000_000_000, "name", 1_000_000_000),
    "nemotron-3-nano": _tensors(31_577_937_344),
    "nemotron-3.5-lightning": Published(
        30_000_000_000, "name", 1_000_000_000, "without embedding and head", -704_643_072
    ),
    "nemotron-3-super": _tensors(123_611_012_096, _MTP, 2_942_325_000),
    "nemotron-3-ultra": _tensors(560_524_628_992, _MTP, 11_215_600_000),
    # The layers alone have 314.88 billion, so that the published figure probably leaves out the embedding.
    "grok-1": Published(314_000_000_000, "release", 1_000_000_000, "probably without embedding", -805_306_368),
    "nemotron4-15b": _paper(15.6, 0.1),
    "nemotron4-340b": _paper(341.0, 0.1),
    "bloom-176b": _tensors(176_247_271_424),
    "megatron-gpt-1.7b": _paper(1.7, 0.1),
    "megatron-gpt-3.6b": _paper(3.6, 0.1),
    "megatron-gpt-7.5b": _paper(7.5, 0.1),
    "megatron-gpt-18b": _paper(18.4, 0.1),
    "megatron-gpt-22b": _paper(22, 1),
    "megatron-gpt-39b": _paper(39.1, 0.1),
    "megatron-gpt-76b": _paper(76.1, 0.1),
    "megatron-gpt-145b": _paper(145.6, 0.1),
    "megatron-gpt-175b": _paper(175, 1),
    "megatron-gpt-310b": _paper(310.1, 0.1),
    "megatron-gpt-530b": _paper(530, 1),
    "megatron-gpt-1t": _paper(1008.0, 0.1),
}
"""Counts by preset."""

"""Hardware sheets: every value has a document, and none is refused silently."""

import pytest
import yaml

from atrex.errors import UserError
from atrex.hardware.chip import chip_ids, load_chip
from atrex.wiki.hardware import find_sheet, find_value, hardware_cards, read_architecture, sheets
from atrex.wiki.vocabulary import DATA, vocabulary


def test_every_architecture_and_listed_chip_has_a_card():
    cards = {card.id for card in hardware_cards()}
    assert {f"arch-{arch.replace('_', '-')}" for arch in vocabulary().architectures} <= cards
    listed = {name for name in chip_ids() if load_chip(name).arch in vocabulary().architectures}
    assert {f"chip-{name.lower()}" for name in listed} <= cards


def test_every_value_of_a_card_cites_a_public_document_with_its_date():
    for card in hardware_cards():
        assert all(source.where.startswith("https://") and source.date for source in card.sources)
        rows = [line for line in card.body.splitlines()[2:] if line.startswith("|")]
        assert rows and all(row.rstrip().rstrip("|").strip().endswith("]") for row in rows)


def test_architectures_say_what_a_kernel_s_author_asks():
    for arch in vocabulary().architectures:
        sheet = find_sheet(arch)
        for field in (
            "warp.size",
            "registers.per_thread",
            "shared_memory.per_block",
            "matrix.instructions",
            "copy.async",
        ):
            assert find_value(sheet, field)[1].url.startswith("https://")


@pytest.mark.parametrize("change", [{"source": None}, {"source": "nobody"}])
def test_a_value_without_a_known_source_is_refused(tmp_path, change):
    data = yaml.safe_load((DATA / "architectures" / "sm_90.yaml").read_text())
    data["values"]["warp.size"] |= change
    path = tmp_path / "sm_90.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(UserError, match=r"values.warp.size: source: expected one of"):
        read_architecture(path)


def test_a_value_is_found_by_part_of_its_name_when_it_is_the_only_one():
    assert find_value(find_sheet("H200"), "bandwidth")[1].shown == "4.8 TB/s"
    assert find_value(find_sheet("H200"), "l2")[1].shown == "50 MiB"
    with pytest.raises(UserError, match="is any of peaks.matrix.bf16, peaks.vector.bf16"):
        find_value(find_sheet("H200"), "bf16")


def test_a_chip_without_public_documents_is_no_card():
    assert "chip-xpu-a" in sheets() and "chip-xpu-a" not in {card.id for card in hardware_cards()}

import pytest

from atrex.errors import UserError
from atrex.problems import load_problem, load_suite
from atrex.problems.load import suite_hash

from .conftest import edit_json


def refused(folder) -> str:
    with pytest.raises(UserError) as caught:
        load_problem(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_file_is_named(folder):
    (folder / "input.py").unlink()
    assert "rms_norm/input.py: missing file" in refused(folder)


def test_missing_folder_is_named(tmp_path):
    assert "no such problem folder" in refused(tmp_path / "nothing")


def test_shapes_key_missing(folder):
    edit_json(folder / "shapes.json", lambda s: s["1"].pop("input_kwargs"))
    assert refused(folder) == "rms_norm/shapes.json: shape 1: missing key 'input_kwargs'"


def test_shapes_of_wrong_type(folder):
    edit_json(folder / "shapes.json", lambda s: s["0"].update(init_kwargs=[1e-6]))
    assert refused(folder) == "rms_norm/shapes.json: shape 0: init_kwargs: expected an object, got list"


def test_shapes_not_json(folder):
    (folder / "shapes.json").write_text("{")
    assert "rms_norm/shapes.json: not valid JSON" in refused(folder)


def test_roofline_that_contradicts_work(folder):
    edit_json(folder / "roofline.json", lambda r: r["shapes"]["1"].update(bytes_read=7))
    message = refused(folder)
    assert "rms_norm/roofline.json: shape 1: bytes_read is 7, work.py says 10496" in message


def test_roofline_without_a_shape(folder):
    edit_json(folder / "roofline.json", lambda r: r["shapes"].pop("1"))
    assert "rms_norm/roofline.json: shapes differ" in refused(folder)


def test_roofline_with_unknown_engine(folder):
    edit_json(folder / "roofline.json", lambda r: r["shapes"]["0"].update(flops={"tensor": {"bf16": 1}}))
    assert "rms_norm/roofline.json: shape 0: flops: expected" in refused(folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: m["inputs"]["x"].update(dtype="bfloat"), "inputs.x.dtype"),
        (lambda m: m["compare"].pop("out"), "compare"),
        (lambda m: m["compare"]["out"].update(kind="close"), "compare.out"),
        (lambda m: m.update(constant=["bias"]), "constant"),
        (lambda m: m.update(colour="red"), "colour"),
    ],
)
def test_metadata_field_at_fault_is_named(folder, change, named):
    edit_json(folder / "metadata.json", change)
    message = refused(folder)
    assert message.startswith("rms_norm/metadata.json: ") and named in message


def test_broken_python_is_one_line(folder):
    (folder / "input.py").write_text("def make_inputs(:\n")
    problem = load_problem(folder)
    with pytest.raises(UserError, match="rms_norm/input.py: cannot be imported: SyntaxError") as caught:
        problem.make_inputs(problem.shape("0"), 0, "cpu")
    assert "\n" not in str(caught.value)


def test_reference_without_model(folder):
    (folder / "reference.py").write_text("class Net: ...\n")
    problem = load_problem(folder)
    with pytest.raises(UserError, match="rms_norm/reference.py: no class Model"):
        problem.reference(problem.shape("0"))


def test_edited_reference_is_loaded_anew(folder):
    problem = load_problem(folder)
    assert problem.reference(problem.shape("0")).eps == 1e-6
    path = folder / "reference.py"
    path.write_text(path.read_text().replace("self.eps = eps", "self.eps = eps + 1.0"))
    assert problem.reference(problem.shape("0")).eps > 1


def test_unknown_operator_suggests_the_nearest(suite):
    with pytest.raises(UserError, match="did you mean rms_norm"):
        suite.problem("rmsnorm")


def test_unknown_shape_gives_the_range(suite):
    with pytest.raises(UserError, match="rms_norm: no shape '56': expected an id from 0 to 55"):
        suite.problem("rms_norm").shape("56")


def test_a_folder_is_a_suite_of_one(folder):
    loaded = load_suite(folder)
    assert list(loaded.problems) == ["rms_norm"] and loaded.version == "unversioned"


def test_empty_suite_is_refused(tmp_path):
    with pytest.raises(UserError, match="no problem folder in it"):
        load_suite(tmp_path)


def test_suite_hash_sees_every_file_but_no_cache(folder):
    before = suite_hash(folder.parent)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "input.cpython-311.pyc").write_bytes(b"x")
    assert suite_hash(folder.parent) == before
    with (folder / "input.py").open("a") as file:
        file.write("\n")
    assert suite_hash(folder.parent) != before


@pytest.mark.parametrize("scores", [{"rms_norm": -1}, {"rms_norm": "a"}, {"rms_norm": 0}, [], {}])
def test_bad_weights_are_refused(folder, scores):
    import json

    (folder.parent / "weights.json").write_text(json.dumps({"importance": scores}))
    with pytest.raises(UserError, match="weights.json: importance"):
        load_suite(folder.parent)

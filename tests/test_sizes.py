from pathlib import Path

import pytest
from sizes import FOLDER_LIMIT, FUNCTION_LIMIT, MODULE_LIMIT, complaints


def long_function(lines: int) -> str:
    return "def f():\n" + "    pass\n" * lines


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        pytest.param({"room/a.py": "pass\n" * MODULE_LIMIT}, [], id="a module at its limit"),
        pytest.param(
            {"room/a.py": "pass\n" * (MODULE_LIMIT + 1)}, ["room/a.py: 351 lines, the limit is 350"], id="a long module"
        ),
        pytest.param(
            {"room/A.java": "{}\n" * (MODULE_LIMIT + 1)}, ["room/A.java: 351 lines, the limit is 350"], id="long Java"
        ),
        pytest.param({"room/a.py": long_function(FUNCTION_LIMIT)}, [], id="a function at its limit"),
        pytest.param(
            {"room/a.py": long_function(FUNCTION_LIMIT + 1)},
            ["room/a.py:1: f: 61 lines, the limit is 60"],
            id="a long function",
        ),
        pytest.param({f"room/{name}.py": "" for name in range(FOLDER_LIMIT)}, [], id="a folder at its limit"),
        pytest.param(
            {f"room/{name}.py": "" for name in range(FOLDER_LIMIT + 1)},
            ["room: 21 modules, the limit is 20"],
            id="a full folder",
        ),
        pytest.param({f"examples/{name}.py": "" for name in range(FOLDER_LIMIT + 1)}, [], id="examples"),
    ],
)
def test_what_is_above_a_limit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: dict[str, str], expected: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in modules.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    assert list(complaints([Path(name) for name in modules])) == expected

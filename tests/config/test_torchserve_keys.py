import importlib.util
import re
import struct
import zipfile
from pathlib import Path

from marina.config.lint.keys import MODEL_CONFIG, PROPERTIES


def jar_class(name: str) -> bytes:
    module_spec = importlib.util.find_spec("ts")
    assert module_spec is not None
    assert module_spec.submodule_search_locations
    jar = Path(module_spec.submodule_search_locations[0]) / "frontend" / "model-server.jar"
    with zipfile.ZipFile(jar) as archive:
        return archive.read(f"org/pytorch/serve/{name}.class")


def constants(data: bytes) -> tuple[dict[int, str], dict[int, int], int]:
    """The texts of a Java class by index, the string constants that refer to them, and the end of the constant pool."""
    sizes = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4}
    texts: dict[int, str] = {}
    strings: dict[int, int] = {}
    count, offset, index = struct.unpack_from(">H", data, 8)[0], 10, 1
    while index < count:
        tag = data[offset]
        if tag == 1:
            length = struct.unpack_from(">H", data, offset + 1)[0]
            texts[index] = data[offset + 3 : offset + 3 + length].decode("utf-8", "replace")
            offset += 3 + length
        else:
            if tag == 8:
                strings[index] = struct.unpack_from(">H", data, offset + 1)[0]
            offset += 1 + sizes[tag]
        index += 2 if tag in (5, 6) else 1
    return texts, strings, offset


def string_fields(data: bytes) -> dict[str, str]:
    """The constant strings that a Java class declares, by the name of the field."""
    texts, strings, offset = constants(data)
    offset += 6
    offset += 2 + 2 * struct.unpack_from(">H", data, offset)[0]
    fields, (count,) = {}, struct.unpack_from(">H", data, offset)
    offset += 2
    for _ in range(count):
        _, name, _, attributes = struct.unpack_from(">4H", data, offset)
        offset += 8
        for _ in range(attributes):
            attribute, length, value = struct.unpack_from(">HIH", data, offset)
            if texts[attribute] == "ConstantValue" and value in strings:
                fields[texts[name]] = texts[strings[value]]
            offset += 6 + length
    return fields


def test_the_table_of_properties_is_what_the_jar_reads() -> None:
    fields = string_fields(jar_class("util/ConfigManager"))
    others = {"USE_NATIVE_IO", "IO_RATIO", "METRIC_TIME_INTERVAL", "ENABLE_ENVVARS_CONFIG", "MODEL_SNAPSHOT"}
    others |= {"MODEL_CONFIG", "VERSION", "SYSTEM_METRICS_CMD", "USE_ENV_ALLOWED_URLS", "PYTHON_EXECUTABLE"}
    settable = {name: key for name, key in fields.items() if name.startswith("TS_")}
    assert PROPERTIES.keys() - {"plugins_path", "vmargs"} == {*settable.values(), *(fields[name] for name in others)}


def test_the_table_of_a_model_config_is_what_the_jar_reads() -> None:
    texts, strings, _ = constants(jar_class("archive/model/ModelConfig"))
    read = {texts[index] for index in strings.values() if re.fullmatch(r"[\w-]+", texts[index])}
    assert read - {"c10d"} == MODEL_CONFIG.keys()

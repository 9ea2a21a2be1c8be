"""Whatever a file or a variable says: a config, or problems with their places; never another exception.

A reload rests on this: what is no ConfigError would not leave the old config standing.
"""

from hypothesis import given
from hypothesis import strategies as st

from llmgw.config import Config, ConfigError, describe, load, reload
from llmgw.config.read import SECTIONS, settings_of
from llmgw.config.settings import EndpointSettings, ModelSettings
from llmgw.config.values import quoted

# As TOML has them; the longest numbers can neither be floats nor be printed.
SHORT = """"" "a" "b" 1 -1 0 1.5 nan inf -inf 1e308 true [] ["a"] ["*"] [1] [[]] {} {a=1} 2020-01-01 "@/x" "@x" "5min"
    "1GiB" "80ms" "http://h:1" "sqlite:///x" "nosuch://u:p@h/d" "\\u0000" "127.0.0.1:7442" "localhost:0" "0.0.0.0:1"
    "openai" "debug" [{model="a"}] [{model="b",on=["429"]}] [{model="a",on=[[]]}]""".split()
LONG = ["9" * 400, "9" * 5000, "0x" + "f" * 5000, "1" + "0" * 400 + ".0", f'"{"9" * 18}TiB"', f'"{"9" * 18}d"']
VALUES = st.sampled_from([*SHORT, *LONG]) | st.text(max_size=9).map(quoted)
KEYS = {section: [setting.name for setting in settings_of(section)] for section in SECTIONS}
MODEL_KEYS = [*ModelSettings.__attrs_attrs__, "fallback", "endpoints"]
ENDPOINT_KEYS = [*EndpointSettings.__attrs_attrs__]


def lines(keys):
    names = [getattr(key, "name", key) for key in keys]
    some = st.dictionaries(st.sampled_from(names), VALUES, max_size=4)
    return some.map(lambda table: "".join(f"{key} = {value}\n" for key, value in table.items()))


sections = st.dictionaries(st.sampled_from(list(KEYS)), st.none(), max_size=3).flatmap(
    lambda chosen: st.tuples(*(lines(KEYS[name]).map(f"[{name}]\n{{}}".format) for name in chosen)).map("".join)
)
endpoint = lines(ENDPOINT_KEYS).map("[[models.endpoints]]\n{}".format)
models = st.lists(
    st.tuples(lines(MODEL_KEYS).map("[[models]]\n{}".format), st.lists(endpoint, max_size=2).map("".join)).map("".join),
    max_size=3,
).map("".join)
variables = st.sampled_from(list(KEYS)).flatmap(
    lambda section: st.sampled_from(KEYS[section]).map(lambda key: f"LLMGW_{section}__{key}".upper())
)
environs = st.dictionaries(
    variables | st.sampled_from(["LLMGW_A__B", "LLMGW___", "LLMGW_MODELS__NAME"]),
    st.sampled_from(["", "1", "-1", "true", "nan", "5min", "\udcff", "9" * 5000]) | st.text(max_size=9),
    max_size=2,
)


def loaded(text, environ):
    try:
        return load(None, environ, text)
    except ConfigError as error:
        return error.problems


@given(sections, models, environs)
def test_any_file_and_any_environment_is_a_config_or_its_problems(written, modelled, environ):
    text = written + modelled

    match loaded(text, environ):
        case Config() as config:
            assert describe(config).keys() == {*SECTIONS, "models"}
            assert reload(config, None, environ, text).needs_restart == ()
        case problems:
            assert problems
            assert all(problem.what and problem.what_to_do for problem in problems)


@given(st.text())
def test_any_text_is_a_config_or_its_problems(text):
    assert loaded(text, {})

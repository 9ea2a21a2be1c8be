"""The config in the README, as somebody would copy it."""

from pathlib import Path

from llmgw.config import load

README = Path(__file__).parents[2] / "README.md"
KEY_FILE = "/etc/llmgw/hosted.key"


def test_the_config_in_the_readme_works_once_its_key_file_is_made(tmp_path):
    before, _, rest = README.read_text(encoding="utf-8").partition("```toml\n")
    config, _, after = rest.partition("```\n")
    key = tmp_path / "hosted.key"
    key.touch(0o600)
    key.write_text("sk-hosted")

    loaded = load(None, {}, config.replace(KEY_FILE, str(key)))

    assert f"@{KEY_FILE}" in config
    assert after.index(f"install -m 600 /dev/null {KEY_FILE}") < after.index("llmgw check-config llmgw.toml")
    assert (list(loaded.fleet.models), loaded.warnings) == (["qwen3-32b", "qwen3-small", "qwen3-hosted"], ())
    assert "llmgw sim engine" in before

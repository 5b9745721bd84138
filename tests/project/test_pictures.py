"""Pictures of screens show what the commands draw."""


def test_pictures_show_what_commands_draw():
    from tests.support import pictures  # which imports many commands

    stored = {path.stem: path.read_text(encoding="utf-8") for path in pictures.FOLDER.glob("*.svg")}
    assert stored == pictures.pictures(), f"run `{pictures.COMMAND}` and look at the pictures in a browser"

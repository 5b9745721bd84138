"""An error that leaves a worker as text is the same error on the driver."""

import traceback

import pytest

from kvctl.errors import BucketNotFound, HazardRefused, KvctlError, PermissionDenied, UsageError
from kvctl.pipeline.error_transport import MARK, crossing, recall


class Local(UsageError):
    """Class outside kvctl.errors."""


def text_of(error: Exception) -> str:
    """Return the text that Spark passes to the driver for an error in a worker."""
    try:
        with crossing():
            raise error
    except Exception as raised:
        passed = "".join(traceback.format_exception(raised)).encode()  # or the driver waits forever
        return f"Job aborted ...\n{passed.decode()}\n\tat java.lang.Thread.run\n"


@pytest.mark.parametrize(
    "error",
    [
        BucketNotFound("Bucket `x` does not exist", hint="Did you mean `y`?\nSay `y`"),
        KvctlError("no hint, ünïcode \x1b"),
        KvctlError("`k.\udcff` is not UTF-8", hint="Rename `k.\udcff`"),
        PermissionDenied("Not allowed", subject="$JS.API.INFO"),
        HazardRefused("lossy-edit", "It loses data"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_class_message_hint_and_fields_come_back(error):
    back = recall(text_of(error))
    assert (type(back), back.message, back.hint, back.exit_code) == (
        type(error),
        error.message,
        error.hint,
        error.exit_code,
    )
    assert vars(back) == {name: value for name, value in vars(error).items() if name != "__notes__"}


def test_a_class_of_another_module_comes_back_as_the_one_it_extends():
    assert type(recall(text_of(Local("bad")))) is UsageError


def test_a_cause_that_is_not_utf_8_passes():
    error = UsageError("Bad")
    error.__cause__ = ValueError("\udcff")
    assert r"ValueError: \udcff" in text_of(error)


def test_traceback_includes_the_hint():
    assert "\nhint: Say `y`\n" in text_of(UsageError("Bad", hint="Say `y`"))


def test_an_error_that_crosses_twice_is_marked_once():
    with pytest.raises(UsageError) as caught, crossing(), crossing():
        raise UsageError("Bad")
    assert len(caught.value.__notes__) == 1


def test_last_of_several_marks_counts():
    back = recall(text_of(UsageError("first")) + text_of(BucketNotFound("second")))
    assert isinstance(back, BucketNotFound)


def test_other_errors_pass_unmarked():
    assert recall(text_of(ValueError("x"))) is None


@pytest.mark.parametrize("rest", ["", '{"kind": "Us', '{"kind": "Nothing", "message": "", "hint": ""}', "[]", "{}"])
def test_truncated_mark_is_ignored(rest):
    assert recall(f"{MARK}{rest}") is None

"""Renders chat templates with Jinja2 as transformers sets it up. Needs transformers and jinja2."""
import datetime
import warnings

from transformers.utils import chat_template_utils

warnings.filterwarnings("ignore", category=DeprecationWarning)  # unknown escapes in texts


def render(case):
    """The result that render_chat gives for the case, but for the words of errors."""
    try:
        template = chat_template_utils._compile_jinja_template(case["template"])
        now = datetime.datetime.fromtimestamp(case["now"])
        template.environment.globals["strftime_now"] = now.strftime
        variables = {"tools": None, "documents": None, **case["variables"]}
        text, spans = chat_template_utils._render_with_assistant_indices(
            template, case["messages"], variables.pop("tools"), variables.pop("documents"),
            case["add_generation_prompt"], **variables)
        text.encode()  # lone surrogates
        return {"text": text, "generation": [list(span) for span in spans]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}

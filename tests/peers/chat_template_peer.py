"""Renders chat templates with Jinja2 as transformers sets it up. Needs transformers and jinja2."""
import copy
import datetime
import warnings

from transformers.utils import chat_template_utils

warnings.filterwarnings("ignore")  # of Python, about what templates write


def render(case):
    """The result that render_chat gives for the case, but for the words of errors."""
    try:
        template = chat_template_utils._compile_jinja_template(case["template"])
        now = datetime.datetime.fromtimestamp(case["now"])
        template.environment.globals["strftime_now"] = now.strftime
        # A copy, because the filter `indent` appends to lists.
        messages, variables = copy.deepcopy((case["messages"], case["variables"]))
        variables = {"tools": None, "documents": None, **variables}
        text, spans = chat_template_utils._render_with_assistant_indices(
            template, messages, variables.pop("tools"), variables.pop("documents"),
            case["add_generation_prompt"], **variables)
        text.encode()  # lone surrogates
        return {"text": text, "generation": [list(span) for span in spans]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}

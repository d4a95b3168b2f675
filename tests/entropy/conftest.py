import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

cuda = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)


@pytest.fixture(params=["cpu", cuda])
def device(request):
    """cpu is the plain PyTorch path, or the kernels in Triton's interpreter (see test_interpreter.py)."""
    return request.param


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(20250804)


@pytest.fixture(scope="session", autouse=True)
def _language_is_patched_once_a_launch():
    """Triton's interpreter patches its language for a launch, and again at each call of a device function, which takes
    two thirds of its time and changes nothing. Here once a launch for the functions of each module."""
    if not INTERPRETED:
        yield
        return
    from triton.runtime import interpreter

    patch, patched = interpreter._patch_lang, set()

    def patch_once(fn):
        if fn.__module__ in patched:
            return None
        scope = patch(fn)
        if not patched:  # a launch's, which alone takes back what it has patched
            restore = scope.restore
            scope.restore = lambda: (patched.clear(), restore())
        patched.add(fn.__module__)
        return scope

    with pytest.MonkeyPatch.context() as context:
        context.setattr(interpreter, "_patch_lang", patch_once)
        yield


class Exact:
    """float64 log-probability and entropy of the given logits, from the definition."""

    def __init__(self, logits, labels, temperature=1.0):
        x = logits.detach().double()
        if isinstance(temperature, torch.Tensor):
            temperature = temperature.double().unsqueeze(-1)
        log_p = torch.log_softmax(x / temperature, -1)
        p = log_p.exp()
        self.entropy = -torch.where(p > 0, p * log_p, 0.0).sum(-1)
        self.log_prob = log_p.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)


@pytest.fixture
def exact():
    return Exact


@pytest.fixture(scope="session")
def policy_logits():
    """Logits as a trained policy gives them: a share of rows is almost certain. (logits, likely labels)"""

    def make(*shape, dtype=torch.float32, device="cpu"):
        *leading, vocabulary = shape
        logits = torch.randn(shape, device=device) * 2 + 5
        top = torch.randint(0, vocabulary, leading, device=device)
        boost = torch.rand(*leading, 1, device=device) * 30
        logits.scatter_add_(-1, top.unsqueeze(-1), boost)
        other = torch.randint(0, vocabulary, leading, device=device)
        return logits.to(dtype), torch.where(torch.rand(leading, device=device) < 0.7, top, other)

    return make


@pytest.fixture
def assert_close_to_exact():
    """The accuracy that is promised, and the signs."""

    def check(log_prob, entropy, truth):
        assert log_prob.dtype == entropy.dtype == torch.float32
        error = (entropy.double() - truth.entropy).abs()
        assert (error <= 2e-3 * (truth.entropy + 1e-6)).all(), error.max()
        assert (entropy >= 0).all()
        assert (log_prob <= 0).all()
        torch.testing.assert_close(log_prob.double(), truth.log_prob, rtol=2e-6, atol=2e-6)

    return check

"""An explanation as one page that needs nothing else: no script, no file beside it, no request."""

import base64
import io
from html import escape

import numpy as np
from PIL import Image
from torch import Tensor

from nngk.data.decode import load_image
from nngk.errors import InputError, printable
from nngk.model.explain import Centre, Explanation

SIDE = 448  # of the picture on the page
THUMBNAIL = 112
STYLE = """
:root { color-scheme: light dark; --ground: #f6f5f1; --card: #fff; --ink: #1d2421; --soft: #5a645f; --line: #dcdad2;
  --bar: #2d8a73; --wash: #e6f0ec; }
@media (prefers-color-scheme: dark) { :root { --ground: #131715; --card: #1c2220; --ink: #e9eeeb; --soft: #a3aea8;
  --line: #333c38; --bar: #5cc4a8; --wash: #1d332c; } }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
.soft { color: var(--soft); }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 1rem; margin-top: 1rem; }
figure { margin: 0; } figure img { width: 100%; border-radius: 10px; }
figcaption { color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; background: var(--card); }
th, td { text-align: left; padding: .5rem .7rem; border-bottom: 1px solid var(--line); vertical-align: middle; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td img { width: 4.5rem; height: 4.5rem; object-fit: cover; border-radius: 8px; display: block; }
meter { width: 100%; min-width: 5rem; }
"""


def explanation_page(told: Explanation, name: str) -> str:
    """Return the page about the picture of a name."""
    words = f"unknown (nearest: {told.answer.label})" if told.answer.is_unknown else told.answer.label
    rows = "".join(_row(each) for each in told.centres)
    classes = "".join(
        f'<tr><td>{_text(label)}</td><td><meter value="{p:.6f}" aria-label="{_text(label)}"></meter></td>'
        f'<td class="number">{p:.2%}</td></tr>'
        for label, p in list(told.answer.probabilities.items())[:8]
    )
    decided = "decided" if told.decided_by == "kernels" else "are nearest (a softmax layer decided)"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{_text(name)}: {_text(words)}</title><style>{STYLE}</style></head><body><main>
<h1>{_text(words)}</h1>
<p class="soft">{_text(name)} · {told.answer.probability:.2%} sure · {_text(told.answer.familiarity())}</p>
<div class="two">
<figure><img src="{_png(_picture(told.picture))}" alt="The picture as the network saw it">
<figcaption>The picture as the network saw it.</figcaption></figure>
<figure><img src="{_png(_heat(told))}" alt="Where the network looked">
<figcaption>What speaks for ‘{_text(told.label)}’: the gradient of its log-probability times the picture.
</figcaption></figure></div>
<h2>Classes</h2><div class="scroll" tabindex="0" role="region" aria-label="Classes"><table><thead><tr><th>Class</th>
<th>Share</th><th class="number">Probability</th></tr></thead><tbody>{classes}</tbody></table></div>
<h2>The training images that {decided}</h2>
<p class="soft">Each counts with its weight times its kernel, exp(−distance² / 2σ²), σ = {told.sigma:.4g}. Its share of
the sum of all is what it gave to the probability of its class.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Training images"><table><thead><tr>
<th>Image</th><th>Class</th><th class="number">Distance</th>
<th class="number">Kernel</th><th class="number">Weight</th><th class="number">Share</th>
</tr></thead><tbody>{rows}</tbody></table></div>
</main></body></html>
"""


def _row(centre: Centre) -> str:
    return (
        f"<tr><td>{_thumbnail(centre)}</td><td>{_text(centre.label)}</td>"
        f'<td class="number">{centre.distance:.4f}</td><td class="number">{centre.kernel:.3g}</td>'
        f'<td class="number">{centre.weight:.3g}</td><td class="number">{centre.share:.2%}</td></tr>'
    )


def _thumbnail(centre: Centre) -> str:
    """Return a small copy of a training image, or its name where the file is gone."""
    try:
        small = load_image(centre.image)
    except (InputError, OSError, ValueError):
        return f"{_text(centre.image)} (the file is gone)"
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    return f'<img src="{_png(small.convert("RGB"), "JPEG")}" alt="{_text(centre.image)}" title="{_text(centre.image)}">'


def _picture(values: Tensor) -> Image.Image:
    array = (values.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    return Image.fromarray(array).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def _heat(told: Explanation) -> Image.Image:
    """Return the picture in grey, with warm colours where the network looked."""
    heat = np.asarray(Image.fromarray(told.looked.numpy()).resize((SIDE, SIDE), Image.Resampling.BICUBIC)).clip(0, 1)
    grey = np.asarray(_picture(told.picture).convert("L"), dtype=np.float32) / 255
    colour = np.stack([np.ones_like(heat), 1 - 0.75 * heat, 0.15 * np.ones_like(heat)], 2)
    mixed = (1 - 0.75 * heat[..., None]) * (0.25 + 0.6 * grey[..., None]) + 0.75 * heat[..., None] * colour
    return Image.fromarray((mixed.clip(0, 1) * 255).round().astype(np.uint8))


def _png(image: Image.Image, kind: str = "PNG") -> str:
    out = io.BytesIO()
    image.save(out, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(out.getvalue()).decode()}"


def _text(words: object) -> str:
    return escape(printable(str(words).encode("utf-8", "replace").decode()))

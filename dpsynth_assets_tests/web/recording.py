"""A recording of the walk: what the page showed, without the waiting, as an animated picture."""

from collections.abc import Collection, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from dpsynth_assets_tests.web.walk import Step

CAPTIONS = {
    "graph": "The asset graph: public bases, and one group for each cohort",
    "data_flow": "One cohort, from private records to a published corpus and its scores",
    "mechanism_explained": "A mechanism with its paper, its code and its privacy level",
    "materialise": "Materialize all: a run begins",
    "progress": "The run says how far it is",
    "finished": "Every release was charged before it read a record",
    "privacy_levels": "Levels on the nodes: sensitive becomes released through a charged mechanism",
    "spend": "What the release cost, what the cohort has spent, what is left",
    "corpus": "A published corpus with its epsilon and guarantee",
    "columns": "Its columns",
    "samples": "Some of its rows",
    "plots": "A private histogram, as it was released",
    "evaluation": "Scores, for internal readers",
    "report": "The report: scores with their verdicts, plots and samples",
    "launchpad_refuses": "The Launchpad cannot change the budget",
    "refused": "A release that the budget has no room for: refused, and the earlier one stays",
    "schedule": "A schedule makes the cohort anew",
    "test_tick": "A tick can be tested first: what it would request",
    "blocked": "Another cohort, whose candidate holds a planted code",
    "blocking_check": "The gate stops it",
    "downstream_stopped": "Nothing was published",
    "run_tags": "Runs found by cohort, release and epsilon",
    "timeline": "Runs over time, those of the command line among them",
    "skip_reason": "The budget is spent: the schedule skips, and says why",
    "budgets": "The budgets of all cohorts on one page",
    "five_questions": "What was spent, by which run, by whom, who may read it, what it builds on",
    "statement": "The privacy statement of the cohort",
    "pack": "The officer's pack: questions answered, and those left to a person",
    "label": "The privacy label of a corpus, for programs",
}
"""What each step shows."""

SIZE = (864, 576)
STRIP = 34
"""Pixels of the caption's strip below the page."""
MOVING, RESTING = 150, 1500
"""Milliseconds that a picture on the way, and the last one of a step, stay."""
MOST_ON_THE_WAY = 6
EMPTY = 16
"""Largest difference of brightness, of 255, within a page that shows nothing yet."""
COLOURS = (96, 64, 48, 32, 24)
LARGEST = 3_000_000


def write_recording(
    steps: Sequence[Step], frames: Path, target: Path, still: Collection[str] = ()
) -> None:
    """Writes a GIF below LARGEST bytes, of at most a minute.

    Args:
        steps: Steps of a walk, with their pictures.
        frames: Folder of what was shown on the way, `STEP-TIME.png`.
        target: The file.
        still: Steps of which only the picture is shown: it was not taken on this walk.
    """
    shown: list[tuple[Image.Image, int]] = []
    for step in steps:
        moves = shown and step.name not in still  # It begins with a whole page.
        taken = sorted(frames.glob(f"{step.name}-*.png")) if moves else []
        on_the_way = [path for path in taken if _shows_something(path)]
        every = max(1, -(-len(on_the_way) // MOST_ON_THE_WAY))
        caption = CAPTIONS[step.name]
        shown += [(_framed(path, caption), MOVING) for path in on_the_way[::every]]
        shown.append((_framed(step.picture, caption), RESTING))
    for colours in COLOURS:
        _save(shown, colours, target)
        if target.stat().st_size < LARGEST:
            return
    raise RuntimeError(f"Expected a recording below {LARGEST} bytes, got {target.stat().st_size}.")


def _shows_something(path: Path) -> bool:
    """False for a page that is still empty: one colour, or nearly."""
    with Image.open(path) as image:
        darkest, lightest = image.convert("L").getextrema()
    return bool(lightest - darkest > EMPTY)


def _framed(path: Path, caption: str) -> Image.Image:
    """A page above its caption."""
    framed = Image.new("RGB", (SIZE[0], SIZE[1] + STRIP), "#1c2333")
    with Image.open(path) as image:
        framed.paste(image.convert("RGB").resize(SIZE, Image.Resampling.LANCZOS), (0, 0))
    font = ImageFont.load_default(size=17)
    ImageDraw.Draw(framed).text((14, SIZE[1] + 7), caption, fill="#ffffff", font=font)
    return framed


def _save(shown: Sequence[tuple[Image.Image, int]], colours: int, target: Path) -> None:
    """Saves frames with one palette: what does not change between two of them takes no room."""
    sheet = Image.new("RGB", (SIZE[0], (SIZE[1] + STRIP) * len(shown[::3])))
    for place, (image, _) in enumerate(shown[::3]):
        sheet.paste(image, (0, place * (SIZE[1] + STRIP)))
    palette = sheet.quantize(colours)
    frames = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image, _ in shown]
    frames[0].save(
        target,
        save_all=True,
        append_images=frames[1:],
        duration=[stays for _, stays in shown],
        loop=0,
        optimize=True,
    )

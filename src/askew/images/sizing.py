"""The one size and number of channels that every image is brought to, alike at fitting and at scoring."""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field

from askew.errors import UnreadableImage
from askew.images.decoding import is_grey
from askew.images.sources import ImageSource

Fit = Literal["crop", "pad", "stretch"]


class SizePolicy(BaseModel):
    """How an image of any size becomes [side, side, channels]; stored with the model.

    `crop` keeps the middle square, `pad` keeps the whole image on black, `stretch` gives up the aspect ratio.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    side: Annotated[int, Field(ge=8, le=1024)]
    fit: Fit
    channels: Literal[1, 3]


def prepare(image: NDArray[np.uint8], policy: SizePolicy) -> NDArray[np.uint8]:
    """The image under the policy, uint8 [side, side, channels].

    `image` is uint8 [height, width, 1 or 3]. One of the policy's size already comes back bit for bit.
    """
    return with_channels(fitted(image, policy.side, policy.fit), policy.channels)


def fitted(image: NDArray[np.uint8], side: int, fit: Fit) -> NDArray[np.uint8]:
    """The image at [side, side], channels as they are."""
    if fit == "pad":
        return _padded(image, side)
    if fit == "crop":
        image = _middle_square(image)
    return _resized(image, side, side)


def with_channels(image: NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    """The image with one or three channels; colour is never silently dropped."""
    if image.shape[2] == channels:
        return image
    if channels == 3:
        return np.repeat(image, 3, axis=2)
    if not is_grey(image):
        raise UnreadableImage(
            "the image has colour, but the model was fitted on grey images; "
            "convert it to grey, or fit on images of which at least one is in colour"
        )
    return np.ascontiguousarray(image[:, :, :1])


def is_enlarged(height: int, width: int, side: int, fit: Fit) -> bool:
    """Whether an image of this size has fewer pixels than the policy asks for, so that some are invented."""
    return fit != "pad" and min(height, width) < side


def auto_fit(source: ImageSource, side: int) -> tuple[Fit, str | None]:
    """How to bring images like the first readable one to the side, and a note where that leaves a part of them out.

    Small squares are framed, as the paper does with MNIST; all else is cropped.
    """
    for index in range(len(source)):
        try:
            height, width = source.read(index).pixels.shape[:2]
        except UnreadableImage:
            continue
        if height == width:
            return ("pad" if 0.5 * side <= height < side else "crop"), None
        percent = 100 * min(height, width) / max(height, width)
        return "crop", (
            f"images such as the first, {width}x{height}, are not square: the middle {percent:.0f} % is used; "
            'size="pad" or "stretch" uses all of it'
        )
    return "crop", None


def _middle_square(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    # Cropped before it is resized: the same pixels remain, and a sliver of 1x100000 stays small.
    height, width = image.shape[:2]
    short = min(height, width)
    top, left = (height - short) // 2, (width - short) // 2
    return image[top : top + short, left : left + short]


def _padded(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    # Paper: section 5.1 pads MNIST's 28x28 with zeros to 32x32; an image that fits is never resized.
    height, width = image.shape[:2]
    long = max(height, width)
    if long > side:
        image = _resized(image, max(1, round(height * side / long)), max(1, round(width * side / long)))
        height, width = image.shape[:2]
    page = np.zeros((side, side, image.shape[2]), np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    page[top : top + height, left : left + width] = image
    return page


def _resized(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    if image.shape[:2] == (height, width):
        return image.copy()  # always the caller's own
    picture = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
    # One axis at a time, the one that shrinks most first: a sliver never grows into gigabytes halfway.
    across, down = width / picture.width, height / picture.height
    for axis in ("across", "down") if across <= down else ("down", "across"):
        ratio, size = (across, (width, picture.height)) if axis == "across" else (down, (picture.width, height))
        if ratio != 1:
            picture = picture.resize(size, _filter(ratio))
    return np.asarray(picture).reshape(height, width, -1).copy()


def _filter(ratio: float) -> Image.Resampling:
    """Area averaging when shrinking by two or more; near one it would drop single lines, where a triangle does not.

    Both look at every pixel they cover, and neither rings: no level appears that its neighbours do not have.
    """
    return Image.Resampling.BOX if ratio <= 0.5 else Image.Resampling.BILINEAR

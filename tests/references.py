"""Slow, plainly right versions of what the package does fast: loops over pixels, images and classes."""

import math

import numpy as np
from scipy.special import psi


def mirrored(position, side):
    """Reflected at the edges until it is inside, the edge pixel repeated."""
    while not 0 <= position < side:
        position = -position - 1 if position < 0 else 2 * side - 1 - position
    return position


def view(image, flip, row_shift, column_shift, turn):
    """One [side, side, c] image flipped, shifted and turned counter-clockwise, pixel by pixel."""
    side = len(image)
    pixels = [[image[i][j] for j in range(side)] for i in range(side)]
    if flip:
        pixels = [[pixels[i][side - 1 - j] for j in range(side)] for i in range(side)]
    rows = [mirrored(i + row_shift, side) for i in range(side)]
    columns = [mirrored(j + column_shift, side) for j in range(side)]
    pixels = [[pixels[rows[i]][columns[j]] for j in range(side)] for i in range(side)]
    for _ in range(turn):
        # What was on the right is on top.
        pixels = [[pixels[j][side - 1 - i] for j in range(side)] for i in range(side)]
    return np.array(pixels)


def moved_and_flipped(image, row_shift, column_shift, flip):
    """One [h, w, c] image moved, then flipped, pixel by pixel."""
    height, width, _ = image.shape
    moved = np.empty_like(image)
    for i in range(height):
        for j in range(width):
            moved[i, j] = image[mirrored(i + row_shift, height), mirrored(j + column_shift, width)]
    return moved[:, ::-1] if flip else moved


def same_convolution(x, weight, stride):
    """TensorFlow's 'same' convolution of [c, h, w] with [o, c, k, k], the odd padding at the end."""
    _, height, width = x.shape
    outputs, _, kernel, _ = weight.shape
    out_height, out_width = math.ceil(height / stride), math.ceil(width / stride)
    above = max((out_height - 1) * stride + kernel - height, 0) // 2
    before = max((out_width - 1) * stride + kernel - width, 0) // 2
    out = np.zeros((outputs, out_height, out_width))
    for i in range(out_height):
        for j in range(out_width):
            for u in range(kernel):
                for v in range(kernel):
                    row, column = i * stride + u - above, j * stride + v - before
                    if 0 <= row < height and 0 <= column < width:
                        out[:, i, j] += weight[:, :, u, v] @ x[:, row, column]
    return out


def wide_residual_network(x, arrays, blocks):
    """The paper's logits for one [c, side, side], layer by layer, from a network's arrays; so many blocks a stage."""

    def active(x, name):
        scale, shift, mean, variance = (
            arrays[f"{name}.{part}"][:, None, None] for part in ("weight", "bias", "running_mean", "running_var")
        )
        return np.maximum((x - mean) / np.sqrt(variance + 1e-5) * scale + shift, 0)

    x = same_convolution(x, arrays["stem.weight"], 1)
    for index in range(3 * blocks):
        name, stride = f"blocks.{index}", 2 if index in (blocks, 2 * blocks) else 1
        first = active(x, f"{name}.norm1")
        projection = arrays.get(f"{name}.shortcut.weight")
        shortcut = x if projection is None else same_convolution(first, projection, stride)
        x = same_convolution(first, arrays[f"{name}.conv1.weight"], stride)
        x = same_convolution(active(x, f"{name}.norm2"), arrays[f"{name}.conv2.weight"], 1) + shortcut
    x = active(x, "norm")
    windows = range(0, x.shape[1], 8)
    cells = [x[:, row : row + 8, column : column + 8].mean(axis=(1, 2)) for row in windows for column in windows]
    return arrays["dense.weight"] @ np.concatenate(cells) + arrays["dense.bias"]


def normality(log_probabilities, alphas):
    """The paper's score of every image, image by image, transform by transform, class by class."""
    scores = []
    for image in log_probabilities:
        score = 0.0
        for answers, concentrations in zip(image, alphas, strict=True):
            for answer, concentration in zip(answers, concentrations, strict=True):
                score += (concentration - 1) * answer
        scores.append(score / len(alphas))
    return np.array(scores)


def likelihood_slope(alphas, log_probabilities):
    """The gradient of the mean Dirichlet log-likelihood: zero where the alphas are the most likely ones."""
    return psi(alphas.sum()) - psi(alphas) + log_probabilities.mean(axis=0)


def mixture_of(features, answers):
    """Shares, means and covariances of a mixture, component by component, point by point."""
    shares, means, covariances = [], [], []
    for component in range(answers.shape[1]):
        weights = answers[:, component]
        mean = sum(weight * point for weight, point in zip(weights, features, strict=True)) / sum(weights)
        covariance = np.zeros((len(mean), len(mean)))
        for weight, point in zip(weights, features, strict=True):
            covariance += weight * np.outer(point - mean, point - mean) / sum(weights)
        shares.append(sum(weights) / len(features))
        means.append(mean)
        covariances.append(covariance)
    return np.array(shares), np.array(means), np.array(covariances)


def capped_energy(point, shares, means, covariances, epsilon=1e-7):
    """DAGMM's energy of a point as the authors' program has it."""
    density = 0.0
    for share, mean, covariance in zip(shares, means, covariances, strict=True):
        distance = (point - mean) @ np.linalg.inv(covariance) @ (point - mean)
        root = math.sqrt(np.linalg.det(2 * math.pi * covariance) + epsilon)
        density += share * math.exp(-distance / 2) / root + epsilon
    return -math.log(density)

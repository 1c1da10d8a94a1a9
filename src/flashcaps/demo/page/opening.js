/**
 * What the digits open on: a network and a sample whose first iteration is wrong and whose last is right.
 * tests/demo/test_captions.py looks for it among all networks and samples: the one that passes through most answers,
 * and of these the one that is surest of a wrong one on the way.
 */
export const OPENING = { model: "demo_em", sample: 21 };

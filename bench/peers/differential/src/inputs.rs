//! Inputs that both sides of the benchmark generate alike, from one seed.

/// xorshift64*: the same constants as `bench/inputs.py`.
#[derive(Clone)]
pub struct Xorshift(u64);

impl Xorshift {
    pub fn new(seed: u64) -> Self {
        Xorshift(if seed == 0 { 0x9E37_79B9_7F4A_7C15 } else { seed })
    }
    pub fn next(&mut self) -> u64 {
        let mut x = self.0;
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0 = x;
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    /// A number below `bound`, or any number if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let x = self.next();
        if bound == 0 { x } else { (x >> 11) % bound }
    }
}

pub fn pairs(rng: &mut Xorshift, rows: usize, keys: u64, vals: u64) -> Vec<(u64, u64)> {
    (0..rows).map(|_| { let k = rng.below(keys); let v = rng.below(vals); (k, v) }).collect()
}

/// One word of the order-independent digest: rows are mixed, then summed with their multiplicity.
pub fn mix(words: &[u64]) -> u64 {
    let mut h = 0x9E37_79B9_7F4A_7C15u64;
    for &w in words {
        h ^= w;
        h = h.wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        h ^= h >> 32;
    }
    h
}

#[derive(Default, Clone, Copy)]
pub struct Digest { pub sum: u64, pub rows: u64 }

impl Digest {
    pub fn add(&mut self, words: &[u64], diff: isize) {
        self.sum = self.sum.wrapping_add(mix(words).wrapping_mul(diff as i64 as u64));
        self.rows += 1;
    }
}

/// Text as a number: FNV-1a.
pub fn text_word(text: &str) -> u64 {
    let mut h = 0xCBF2_9CE4_8422_2325u64;
    for b in text.bytes() { h = (h ^ b as u64).wrapping_mul(0x100_0000_01B3); }
    h
}

// Words of memory: what one access moves, 4, 8 or 16 bytes. More bytes side by side are several
// words of 16.
template <int kBytes>
struct WordOf {
  using type = uint4;
};
template <>
struct WordOf<8> {
  using type = uint2;
};
template <>
struct WordOf<4> {
  using type = unsigned;
};

// Reads one word; once: evict-first, for what nobody reads again.
template <bool kOnce, class Word>
__device__ __forceinline__ Word load_word(const Word* from) {
  return kOnce ? __ldcs(from) : *from;
}

// Writes one word; once: evict-first.
template <bool kOnce, class Word>
__device__ __forceinline__ void store_word(Word* to, const Word& word) {
  if constexpr (kOnce) {
    __stcs(to, word);
  } else {
    *to = word;
  }
}

// Reads a struct of whole words, which lie side by side.
template <bool kOnce, class Word, class Whole>
__device__ __forceinline__ Whole load_words(const void* address) {
  const Word* from = reinterpret_cast<const Word*>(address);
  Whole whole;
#pragma unroll
  for (int w = 0; w < static_cast<int>(sizeof(Whole) / sizeof(Word)); ++w) {
    reinterpret_cast<Word*>(&whole)[w] = load_word<kOnce>(from + w);
  }
  return whole;
}

// Writes one.
template <bool kOnce, class Word, class Whole>
__device__ __forceinline__ void store_words(void* address, const Whole& whole) {
  Word* to = reinterpret_cast<Word*>(address);
#pragma unroll
  for (int w = 0; w < static_cast<int>(sizeof(Whole) / sizeof(Word)); ++w) {
    store_word<kOnce>(to + w, reinterpret_cast<const Word*>(&whole)[w]);
  }
}

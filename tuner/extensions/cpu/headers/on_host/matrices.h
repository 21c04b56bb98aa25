// ldmatrix, mma and wgmma: the fragments of PTX's tables, and sums in double where a GPU's are rougher.
#pragma once

namespace cuda_on_host {

static float decoded(unsigned code, OperandType type) {
  switch (type) {
    case OperandType::bf16: return __uint_as_float(code << 16);
    case OperandType::f16: return Fp16::decode(static_cast<unsigned short>(code));
    case OperandType::tf32: return __uint_as_float(code & 0xFFFFE000u);
    case OperandType::e4m3: return decode8<__NV_E4M3>(static_cast<unsigned char>(code));
    default: return decode8<__NV_E5M2>(static_cast<unsigned char>(code));
  }
}

// One row of an operand: 32 bytes of K as numbers.
struct Row {
  float at[32];
};

static int per_word(OperandType type) {
  if (type == OperandType::tf32) return 1;
  return type == OperandType::bf16 || type == OperandType::f16 ? 2 : 4;
}

static Row row_of(const unsigned (&words)[8], OperandType type) {
  static float byte_values[2][256];
  static bool known;
  for (unsigned i = 0; i < 256 && !known; ++i) {
    byte_values[0][i] = decoded(i, OperandType::e4m3);
    byte_values[1][i] = decoded(i, OperandType::e5m2);
  }
  known = true;
  Row row = {};
  const int each = per_word(type);
  for (int i = 0; i < 8 * each; ++i) {
    const unsigned word = words[i / each];
    if (each == 1)
      row.at[i] = decoded(word, type);
    else if (each == 2)
      row.at[i] = decoded(word >> 16 * (i % 2) & 0xFFFF, type);
    else
      row.at[i] = byte_values[type == OperandType::e5m2][word >> 8 * (i % 4) & 0xFF];
  }
  return row;
}

static double product(const Row& a, const Row& b, OperandType type) {
  double sum = 0;
  for (int k = 0; k < 8 * per_word(type); ++k) sum += static_cast<double>(a.at[k]) * static_cast<double>(b.at[k]);
  return sum;
}

static void in_whole_warp(const char* name, Finish finish, void* operands, int line) {
  const Thread* const lanes = lanes_of(current);
  if (lanes_in(lanes) < 32) fault(line, "%s needs a whole warp, and this one has %u threads", name, lanes_in(lanes));
  in_warp(name, finish, ~0u, reinterpret_cast<uintptr_t>(operands), 0, line);
}

static void require_all(const Thread* lanes, unsigned present) {
  if (present != ~0u) fault(lanes[__builtin_ctz(present)].line, "%s after a lane of its warp has ended", lanes[__builtin_ctz(present)].waits);
}

template <class T>
static T& of_lane(const Thread* lanes, unsigned lane) {
  return *reinterpret_cast<T*>(static_cast<uintptr_t>(lanes[lane].value));
}

struct MatrixLoad {
  unsigned* r;
  int count;
  bool transposed;
  unsigned row;
  int line;
};

static void finish_matrices(Thread* lanes, Lanes present) {
  require_all(lanes, present);
  for (unsigned lane = 0; lane < 32; ++lane) {
    MatrixLoad& mine = of_lane<MatrixLoad>(lanes, lane);
    for (int i = 0; i < mine.count; ++i) {
      const auto element = [&](unsigned row, unsigned column) {
        const unsigned start = of_lane<MatrixLoad>(lanes, i * 8 + row).row;
        const unsigned char* const at = shared_at(start, 16, 16, "ldmatrix", mine.line);
        if (lane == 0) require_landed(start, 16, "ldmatrix", mine.line);
        return at[2 * column] | unsigned{at[2 * column + 1]} << 8;
      };
      const unsigned group = lane / 4, pair = lane % 4 * 2;
      mine.r[i] = mine.transposed ? element(pair, group) | element(pair + 1, group) << 16
                                  : element(group, pair) | element(group, pair + 1) << 16;
    }
  }
}

void load_matrices(unsigned* r, int count, unsigned row, bool transposed, int line) {
  MatrixLoad mine = {r, count, transposed, row, line};
  in_whole_warp("ldmatrix", finish_matrices, &mine, line);
}

struct WarpMultiply {
  float* d;
  unsigned a[4], b[2];
  OperandType type;
};

// Word w of a row's 32 bytes is with lane w % 4 of the row's four, in register w / 4 * 2.
static void row_words(unsigned (&words)[8], const unsigned* const (&registers)[4], unsigned first, unsigned step) {
  for (unsigned w = 0; w < 8; ++w) words[w] = registers[w % 4][first + w / 4 * step];
}

static void finish_multiply(Thread* lanes, Lanes present) {
  require_all(lanes, present);
  const OperandType type = of_lane<WarpMultiply>(lanes, 0).type;
  Row a[16], b[8];
  unsigned words[8];
  for (unsigned i = 0; i < 16; ++i) {
    const unsigned* registers[4];
    for (unsigned t = 0; t < 4; ++t) registers[t] = of_lane<WarpMultiply>(lanes, i % 8 * 4 + t).a;
    row_words(words, {registers[0], registers[1], registers[2], registers[3]}, i / 8, 2);
    a[i] = row_of(words, type);
  }
  for (unsigned i = 0; i < 8; ++i) {
    const unsigned* registers[4];
    for (unsigned t = 0; t < 4; ++t) registers[t] = of_lane<WarpMultiply>(lanes, i * 4 + t).b;
    row_words(words, {registers[0], registers[1], registers[2], registers[3]}, 0, 1);
    b[i] = row_of(words, type);
  }
  for (unsigned lane = 0; lane < 32; ++lane)
    for (unsigned i = 0; i < 4; ++i) {
      float& d = of_lane<WarpMultiply>(lanes, lane).d[i];
      d = static_cast<float>(static_cast<double>(d) + product(a[lane / 4 + i / 2 * 8], b[lane % 4 * 2 + i % 2], type));
    }
}

void multiply_in_warp(float* d, const unsigned* a, const unsigned* b, OperandType type, int line) {
  WarpMultiply mine = {d, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}, type};
  in_whole_warp("mma", finish_multiply, &mine, line);
}

struct RowsOfWarp {
  Multiply* one;
  unsigned a[4];
};

static void finish_rows(Thread* lanes, Lanes present) {
  require_all(lanes, present);
  for (unsigned lane = 0; lane < 32; ++lane)
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned* registers[4];
      for (unsigned t = 0; t < 4; ++t) registers[t] = of_lane<RowsOfWarp>(lanes, lane / 4 * 4 + t).a;
      row_words(of_lane<RowsOfWarp>(lanes, lane).one->rows[half],
                {registers[0], registers[1], registers[2], registers[3]}, half, 2);
    }
}

void gather_rows(Multiply& one, const unsigned* a) {
  RowsOfWarp mine = {&one, {a[0], a[1], a[2], a[3]}};
  in_whole_warp("wgmma", finish_rows, &mine, one.line);
}

// The sums of the multiplies in flight; the kernel's registers hold NaN meanwhile.
struct Sums {
  float* d;
  int count;
  unsigned pending;
  bool known;  // they are what the last multiply left
  float value[128];
};
struct Multiplies {
  std::vector<Sums> sums;
  Groups<Multiply> groups;
  bool fenced;
};
static PerBlock<std::vector<Multiplies>> multiplies;

static Sums& sums_of(const Multiply& one) {
  auto& sums = mine(multiplies).sums;
  for (Sums& known : sums)
    if (known.d == one.d && (known.count == one.columns / 2 || known.pending)) return known;
  for (size_t i = sums.size(); i-- > 0;)
    if (sums[i].d == one.d) sums.erase(sums.begin() + static_cast<std::ptrdiff_t>(i));
  sums.push_back({one.d, one.columns / 2, 0, false, {}});
  return sums.back();
}

struct Descriptor {
  unsigned start, leading, stride, swizzle;
};

static Descriptor descriptor_of(unsigned long long bits, int line) {
  static const unsigned swizzles[] = {0, 128, 64, 32};
  const Descriptor found = {static_cast<unsigned>(bits & 0x3FFF) << 4, static_cast<unsigned>(bits >> 16 & 0x3FFF) << 4,
                            static_cast<unsigned>(bits >> 32 & 0x3FFF) << 4, swizzles[bits >> 62]};
  if (found.swizzle && found.start % (8 * found.swizzle) >= found.swizzle)
    fault(line, "wgmma: a matrix with a swizzle of %u begins at %u, no multiple of %u", found.swizzle, found.start,
          8 * found.swizzle);
  return found;
}

// Where 16 bytes of a row lie: the first or the second half of the 32 of K.
static unsigned chunk(const Descriptor& of, unsigned row, unsigned half) {
  const unsigned eight = of.start + row / 8 * of.stride;
  if (!of.swizzle) return eight + half * of.leading + row % 8 * 16;
  return swizzled(eight + row % 8 * of.swizzle + half * 16, of.swizzle);
}

static Row shared_row(const Descriptor& of, unsigned row, const Multiply& one) {
  unsigned words[8];
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned at = chunk(of, row, half);
    shared_at(at, 16, 16, "wgmma", one.line);
    memcpy(words + 4 * half, *proxy_view + at, 16);
  }
  return row_of(words, one.type);
}

// Both when it is asked for and when it is done: it may read at either time.
static void require_operands(const Multiply& one) {
  if (current % 32 || in_flight->empty()) return;
  const unsigned long long bits[] = {one.a, one.b};
  const unsigned rows[] = {one.from_shared ? 64u : 0u, static_cast<unsigned>(one.columns)};
  for (int which = 0; which < 2; ++which) {
    const Descriptor of = descriptor_of(bits[which], one.line);
    for (unsigned row = 0; row < rows[which]; ++row)
      for (unsigned half = 0; half < 2; ++half) require_landed(chunk(of, row, half), 16, "wgmma", one.line);
  }
}

static void multiply_now(const Multiply& one) {
  publish();
  require_operands(one);
  Sums& sums = sums_of(one);
  const unsigned warp = current / 32 % 4, lane = current % 32;
  Row a[2];
  for (unsigned half = 0; half < 2; ++half)
    a[half] = one.from_shared ? shared_row(descriptor_of(one.a, one.line), warp * 16 + lane / 4 + half * 8, one)
                              : row_of(one.rows[half], one.type);
  const Descriptor b = descriptor_of(one.b, one.line);
  for (int i = 0; i < sums.count; i += 4)
    for (int pair = 0; pair < 2; ++pair) {
      const Row column = shared_row(b, i * 2 + lane % 4 * 2 + pair, one);
      for (int half = 0; half < 2; ++half) {
        float& d = sums.value[i + 2 * half + pair];
        const double before = one.accumulate ? static_cast<double>(d) : 0.0;
        d = static_cast<float>(before + product(a[half], column, one.type));
      }
    }
  if (--sums.pending) return;
  memcpy(sums.d, sums.value, sizeof(float) * sums.count);
  sums.known = true;
}

void multiply_later(const Multiply& one) {
  if (thread_count < 128) fault(one.line, "wgmma needs a warpgroup of 128 threads, and the block has %u", thread_count);
  require_operands(one);
  Sums& sums = sums_of(one);
  const size_t bytes = sizeof(float) * sums.count;
  if (!sums.pending) {
    const bool untouched = sums.known && !memcmp(one.d, sums.value, bytes);
    if (!mine(multiplies).fenced && !untouched)
      fault(one.line, "wgmma on registers that other instructions wrote: no wgmma_fence stands between");
    memcpy(sums.value, one.d, bytes);
    memset(static_cast<void*>(one.d), kNotLanded, bytes);
  }
  ++sums.pending;
  mine(multiplies).groups.open.push_back(one);
}

void fence_multiplies(int line) {
  in_whole_warp("wgmma_fence", finish_sync, nullptr, line);
  mine(multiplies).fenced = true;
}

void commit_multiplies(int line) {
  in_whole_warp("wgmma_commit", finish_sync, nullptr, line);
  mine(multiplies).groups.commit();
}

void wait_for_multiplies(unsigned pending, int line) {
  in_whole_warp("wgmma_wait", finish_sync, nullptr, line);
  mine(multiplies).fenced = false;
  mine(multiplies).groups.complete(pending, multiply_now);
  in_whole_warp("wgmma_wait", finish_sync, nullptr, line);
}

}  // namespace cuda_on_host

// SPDX-License-Identifier: Apache-2.0
// Text features become floats. Streams make an object and a string for every field; strtof asks for the locale's point and is
// ready for any length and any rounding; a loop over characters mispredicts its end in every field, because fields differ in
// length. Eight digits are one number in a 64-bit word, so that a field takes a few multiplications and no branch; and separators
// can be found, and digits multiplied, for several fields at a time in vector registers.
#include <aisp/pair.hpp>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace aisp::ch05 {
namespace {

constexpr std::size_t features = 16;
constexpr std::size_t padding_bytes = 64;  // zeros after the text, which readers of whole words may touch
// Powers of ten, by the sign of the number that they divide and the number of digits after its point.
constexpr double signed_powers[2][9] = {{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8},
                                        {-1, -1e1, -1e2, -1e3, -1e4, -1e5, -1e6, -1e7, -1e8}};

bool is_end(char c) { return c == ',' || c == '\n' || c == '\0'; }

// Skips a plus sign, which strtof takes and from_chars does not.
const char* convert_any(const char* at, float& value) {
  if (*at == '+') ++at;
  const char* end = at;
  while (!is_end(*end)) ++end;
  const auto [stop, error] = std::from_chars(at, end, value);
  if (error != std::errc{} || stop != end) throw std::runtime_error{"a field is no number: " + std::string{at, end}};
  return end;
}

constexpr std::uint64_t every_byte = 0x0101010101010101ull;
std::uint64_t word_at(const char* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}
// High bits of the bytes below that of '-', which end a field, up to the first one; above it, any.
std::uint64_t ends_in(std::uint64_t word) { return (word - every_byte * '-') & ~word & every_byte * 0x80; }
// High bits of the points, up to the first one.
std::uint64_t points_in(std::uint64_t word) {
  return ((word ^ every_byte * '.') - every_byte) & ~(word ^ every_byte * '.') & every_byte * 0x80;
}
bool are_digits(std::uint64_t values) {
  return ((((values & every_byte * 0x7F) + every_byte * 0x76) | values) & every_byte * 0x80) == 0;
}

// The number that eight digits make, the first of them in the lowest byte: pairs, then fours, then all.
std::uint32_t number_of(std::uint64_t digits) {
  digits = (digits * (10 << 8 | 1) >> 8) & 0x00FF00FF00FF00FFull;
  digits = (digits * (100 << 16 | 1) >> 16) & 0x0000FFFF0000FFFFull;
  return static_cast<std::uint32_t>(digits * (10000ull << 32 | 1) >> 32);
}

// A field of at most eight digits and one point, without a branch that depends on its length; any other one by convert_any. Where
// the next field begins needs the separator alone, so that the conversions of several fields overlap. The quotient of two exact
// doubles is rounded once, and then to fp32.
const char* convert_word(const char* begin, float& value) {
  const std::uint64_t ends = ends_in(word_at(begin)), more_ends = ends_in(word_at(begin + 8));
  if ((ends | more_ends) == 0) return convert_any(begin, value);
  // Masks instead of choices, of which the compiler would make branches: half of the fields are negative, and half are long.
  const auto more = static_cast<std::size_t>(std::countr_zero(more_ends)) & (std::size_t{0} - (ends == 0 ? 1 : 0));
  const char* const end = begin + (static_cast<std::size_t>(std::countr_zero(ends)) + more) / 8;
  const std::size_t negative = *begin == '-' ? 1 : 0;
  const char* const at = begin + negative;
  const std::uint64_t word = word_at(at), points = points_in(word);
  const auto point = static_cast<std::size_t>(std::countr_zero(points | 1ull << 63)) & ~std::size_t{7};  // in bits
  const auto count = static_cast<std::size_t>(end - at) - 1;                                             // of digits
  const std::uint64_t whole = (word ^ every_byte * '0') & ~(~std::uint64_t{0} << point);
  const std::uint64_t digits = whole | (word_at(at + point / 8 + 1) ^ every_byte * '0') << point;
  const std::uint64_t aligned = digits << (8 - count) % 8 * 8;  // zeros lead
  if (points == 0 || count - 1 >= 8 || point / 8 > count || !are_digits(aligned)) return convert_any(begin, value);
  value = static_cast<float>(static_cast<double>(number_of(aligned)) / signed_powers[negative][count - point / 8]);
  return end;
}

#if defined(__x86_64__)
#define AVX2_TARGET [[gnu::target("arch=x86-64-v3")]]
bool has_avx2() { return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi2") != 0; }

// The ends of the fields that wait to be converted, and the begin of the first of them.
struct Fields {
  static constexpr std::size_t flushed_at = 256, block_bytes = 64;
  std::uint32_t begin = 0, end[flushed_at + 2 * block_bytes];
  std::size_t count = 0;
};

// Which bytes of the last 16 of a field are its eight digits, by the number of digits and of those after the point; what is in
// front of the field becomes zero.
struct Alignments {
  alignas(16) std::uint8_t from[9][9][16];
  constexpr Alignments() : from{} {
    for (std::size_t count = 0; count < 9; ++count)
      for (std::size_t fraction = 0; fraction < 9; ++fraction)
        for (std::size_t i = 0; i < 16; ++i) {
          const std::size_t from_end = 8 - i;  // 1: the last digit
          const bool is_digit = i < 8 && from_end <= count;
          from[count][fraction][i] = static_cast<std::uint8_t>(!is_digit              ? 0x80
                                                               : from_end <= fraction ? 16 - from_end
                                                                                      : 15 - from_end);
        }
  }
};
constexpr Alignments alignments;

// The eight digits of a field, as numbers; `divisor` gets its sign too. Returns false for a field of another form.
AVX2_TARGET inline bool align_digits(const char* text, std::uint32_t begin, std::uint32_t end, __m128i& digits, double& divisor) {
  const __m128i last = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text + end - 16));
  const auto points = static_cast<unsigned>(_mm_movemask_epi8(_mm_cmpeq_epi8(last, _mm_set1_epi8('.'))));
  const unsigned negative = text[begin] == '-' ? 1 : 0;
  const unsigned count = end - begin - negative - 1;
  const unsigned fraction = static_cast<unsigned>(std::countl_zero(points | 1u)) - 16;
  const bool is_plain = count - 1 < 8 && fraction <= count && points != 0;
  const unsigned c = is_plain ? count : 0, f = is_plain ? fraction : 0;
  const __m128i from = _mm_load_si128(reinterpret_cast<const __m128i*>(alignments.from[c][f]));
  digits = _mm_shuffle_epi8(_mm_sub_epi8(last, _mm_set1_epi8('0')), from);
  divisor = signed_powers[negative][f];
  return is_plain;
}

AVX2_TARGET inline __m256i side_by_side(const __m128i* digits) {
  return _mm256_set_m128i(_mm_unpacklo_epi64(digits[4], digits[5]), _mm_unpacklo_epi64(digits[0], digits[1]));
}

// Eight fields: pairs of digits, then fours, then all, in one instruction each for several of them.
AVX2_TARGET inline bool convert_eight(const char* text, std::uint32_t begin, const std::uint32_t* end, float* values) {
  __m128i digits[8];
  double divisor[8];
  bool plain = true;
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) plain &= align_digits(text, i == 0 ? begin : end[i - 1] + 1, end[i], digits[i], divisor[i]);
  const __m256i outer = side_by_side(digits), inner = side_by_side(digits + 2);
  const __m256i beyond_nine = _mm256_subs_epu8(_mm256_max_epu8(outer, inner), _mm256_set1_epi8(9));
  if (!plain || !_mm256_testz_si256(beyond_nine, beyond_nine)) return false;
  const __m256i tens = _mm256_set1_epi16(1 << 8 | 10), hundreds = _mm256_set1_epi32(1 << 16 | 100),
                myriads = _mm256_set1_epi32(1 << 16 | 10000);
  const __m256i fours = _mm256_packus_epi32(_mm256_madd_epi16(_mm256_maddubs_epi16(outer, tens), hundreds),
                                            _mm256_madd_epi16(_mm256_maddubs_epi16(inner, tens), hundreds));
  const __m256i numbers = _mm256_madd_epi16(fours, myriads);
  const __m256d low = _mm256_div_pd(_mm256_cvtepi32_pd(_mm256_castsi256_si128(numbers)),
                                    _mm256_setr_pd(divisor[0], divisor[1], divisor[2], divisor[3]));
  const __m256d high = _mm256_div_pd(_mm256_cvtepi32_pd(_mm256_extracti128_si256(numbers, 1)),
                                     _mm256_setr_pd(divisor[4], divisor[5], divisor[6], divisor[7]));
  _mm_storeu_ps(values, _mm256_cvtpd_ps(low));
  _mm_storeu_ps(values + 4, _mm256_cvtpd_ps(high));
  return true;
}

AVX2_TARGET inline std::uint32_t ends_in_half(const char* text) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(text));
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpgt_epi8(_mm256_set1_epi8('-'), bytes)));
}

// Adds the ends in 64 bytes from `at` on, of which `bytes` count. Twelve are written, however many there are, so that no branch
// depends on that where fields have five characters or more.
AVX2_TARGET inline void find_ends(const char* text, std::size_t at, std::size_t bytes, Fields& fields) {
  std::uint64_t ends = ends_in_half(text + at) | std::uint64_t{ends_in_half(text + at + 32)} << 32;
  if (bytes < Fields::block_bytes) ends &= ~(~std::uint64_t{0} << bytes);
  std::uint32_t* to = fields.end + fields.count;
  const int count = std::popcount(ends);
  for (int left = count; left > 0; left -= 12) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i, ends &= ends - 1)
      *to++ = static_cast<std::uint32_t>(at) + static_cast<std::uint32_t>(std::countr_zero(ends));
  }
  fields.count += static_cast<std::size_t>(count);
}

// Converts and takes out all fields but those that do not fill a group of `least`. Returns how many values it wrote; an empty
// line has none.
AVX2_TARGET inline std::size_t convert_fields(const char* text, Fields& fields, std::size_t least, float* values) {
  std::size_t done = 0, written = 0;
  while (done < fields.count && fields.count - done >= least) {
    const std::size_t count = std::min<std::size_t>(8, fields.count - done);
    const std::uint32_t* const end = fields.end + done;
    if (count == 8 && end[0] >= 16 && convert_eight(text, fields.begin, end, values + written)) written += 8;
    else
      for (std::size_t i = 0; i < count; ++i)
        if (const std::uint32_t begin = i == 0 ? fields.begin : end[i - 1] + 1; begin != end[i])
          convert_word(text + begin, values[written++]);
    fields.begin = end[count - 1] + 1;
    done += count;
  }
  std::copy(fields.end + done, fields.end + fields.count, fields.end);
  fields.count -= done;
  return written;
}

// Returns how many values were written. 64 bytes after the text may be read, and the first of them ends its last field.
AVX2_TARGET std::size_t convert_in_lanes(const char* text, std::size_t bytes, float* values) {
  Fields fields;
  std::size_t written = 0;
  for (std::size_t at = 0; at <= bytes; at += Fields::block_bytes) {
    find_ends(text, at, bytes + 1 - at, fields);
    if (fields.count >= Fields::flushed_at) written += convert_fields(text, fields, 8, values + written);
  }
  return written + convert_fields(text, fields, 1, values + written);
}
#else
bool has_avx2() { return false; }
std::size_t convert_in_lanes(const char*, std::size_t, float*) { return 0; }
#endif

class Vectorization final : public Workload {
 public:
  explicit Vectorization(Setup& setup)
      : lines_{setup.size("lines")},
        digits_{setup.size("digits")},
        is_odd_{setup.size("odd") == 1},
        text_{setup.input<char>(lines_ * (features * most_field_bytes() + 1) + padding_bytes,
                                HostFill<char>{[this](std::span<char> text, std::uint64_t seed) { write(text, seed); }},
                                {.name = "text"})},
        values_{setup.output<float>(lines_ * features, {.name = "values"})},
        sum_{setup.scratch<std::uint64_t>(1)} {}

  Cost cost() const override { return {.host_bytes = static_cast<double>(text_bytes_ + values_.bytes())}; }
  void compute_reference(Launch&) override {
    reference_.clear();
    for (const char* at = text_.get(); *at != '\0';) {
      if (is_end(*at)) {
        ++at;
        continue;
      }
      char* end = nullptr;
      reference_.push_back(static_cast<float>(std::strtod(at, &end)));
      at = end;
    }
  }
  double expected(std::size_t index) const override { return static_cast<double>(reference_.at(index)); }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("text_rate", static_cast<double>(text_bytes_) / 1e6, "MB/s");
  }

  void streams(Launch&) {
    std::istringstream text{std::string{text_.get(), text_bytes_}};
    std::string line, field;
    std::size_t count = 0;
    while (std::getline(text, line)) {
      std::istringstream fields{line};
      while (std::getline(fields, field, ',')) values_[count++] = std::stof(field);
    }
    require_all(count);
  }
  void strtof(Launch&) {
    each_field([](const char* at, float& value) {
      char* end = nullptr;
      value = std::strtof(at, &end);
      return const_cast<const char*>(end);
    });
  }
  void from_chars(Launch&) {
    const char* const last = text_.get() + text_bytes_;
    each_field([last](const char* at, float& value) {
      if (*at == '+') ++at;
      return std::from_chars(at, last, value).ptr;
    });
  }
  void swar(Launch&) { each_field(convert_word); }
  void simd(Launch&) {
    if (!has_avx2()) throw Unsupported{"this CPU has no AVX2"};
    require_all(convert_in_lanes(text_, text_bytes_, values_));
  }
  void sum_words(Launch&) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < text_bytes_; i += sizeof sum) sum += word_at(text_ + i);
    sum_[0] = sum;
  }

 private:
  std::size_t most_field_bytes() const { return digits_ + 8; }  // sign, point, exponent, separator

  template <class Convert>
  void each_field(const Convert& convert) {
    std::size_t count = 0;
    const char* const last = text_.get() + text_bytes_;
    for (const char* at = text_; at < last; ++at)
      if (!is_end(*at)) at = convert(at, values_[count++]);
    require_all(count);
  }
  void require_all(std::size_t count) const {
    if (count != values_.size()) throw std::runtime_error{"the text has " + std::to_string(count) + " values"};
  }

  // Half of the fields have all digits, the others fewer; half are negative, and the point lies anywhere among the first digits.
  // Odd text has what the format allows beside it: a plus, an exponent, no digit on one side of the point or no point, empty
  // lines, and no newline at its end.
  void write(std::span<char> text, std::uint64_t seed) {
    std::size_t at = 0;
    std::uint64_t drawn = 0;
    const auto below = [&](std::uint64_t count) { return random_bits(seed, drawn++) % count; };
    const auto put = [&](char c) { text[at++] = c; };
    for (std::size_t line = 0; line < lines_; ++line) {
      if (is_odd_ && below(4) == 0) put('\n');
      for (std::size_t feature = 0; feature < features; ++feature) {
        const std::size_t least = std::min<std::size_t>(3, digits_);
        const std::size_t digits = below(2) == 0 ? digits_ : least + below(digits_ - least + 1);
        const bool is_odd = is_odd_ && below(2) == 0;
        const std::size_t point = is_odd ? below(digits + 1) : 1 + below(std::min<std::size_t>(4, digits) - 1);
        if (below(2) == 0) put('-');
        else if (is_odd && below(2) == 0) put('+');
        for (std::size_t i = 0; i < digits; ++i) {
          if (i == point) put('.');
          put(static_cast<char>('0' + below(10)));
        }
        if (point == digits && below(2) == 0) put('.');
        if (is_odd && below(2) == 0) {
          put('e');
          if (below(2) == 0) put('-');
          put(static_cast<char>('0' + below(10)));
        }
        put(feature + 1 < features ? ',' : '\n');
      }
    }
    text_bytes_ = at - (is_odd_ && at > 0 ? 1 : 0);
    std::fill(text.begin() + static_cast<std::ptrdiff_t>(text_bytes_), text.end(), '\0');
  }

  std::size_t lines_, digits_;
  bool is_odd_;
  std::size_t text_bytes_ = 0;
  Input<char> text_;
  Output<float> values_;
  Scratch<std::uint64_t> sum_;
  std::vector<float> reference_;
};

}  // namespace

extern constinit const Pair vectorization{
    .teaches =
        "text parsing is bound by how general the conversion is, not by bytes: eight digits are one number in a 64-bit word, "
        "converted without a loop or a branch",
    .lesson = "swar",
    .make = make<Vectorization>,
    .baseline = {.name = "streams", .run = call<&Vectorization::streams>},
    .optimized = variants({{.name = "strtof", .run = call<&Vectorization::strtof>, .same_bits_as = "streams"},
                           {.name = "from_chars", .run = call<&Vectorization::from_chars>, .same_bits_as = "streams"},
                           {.name = "swar", .run = call<&Vectorization::swar>},
                           {.name = "simd", .run = call<&Vectorization::simd>}}),
    .controls = variants({{.name = "sum_words", .run = call<&Vectorization::sum_words>, .outputs = no_outputs}}),
    .device = Device::host,
    .bound = Bound::host,
    // A decimal near the middle of two floats is rounded twice by what goes over float64, as the reference does: one in 2^29.
    .tolerance = within_steps(1, 1e-5),
    .sizes = sizes({{.name = "lines", .full = 25000, .least = 0},
                    {.name = "digits", .full = 8, .least = 2, .most = 17, .scales = false},
                    option("odd")}),
    .sweep = cases({{"digits_3", "digits=3"}, {"digits_6", "digits=6"}, {"digits_9", "digits=9"}, {"digits_17", "digits=17"}}),
    .edges = cases({{"empty", "lines=0"},
                    {"one_line", "lines=1"},
                    {"odd", "odd=1,lines=2000"},
                    {"odd_and_long", "odd=1,lines=2000,digits=17"}}),
};

}  // namespace aisp::ch05

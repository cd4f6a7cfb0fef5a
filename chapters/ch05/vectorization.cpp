// SPDX-License-Identifier: Apache-2.0
// Text features become floats. Streams make an object and a string for every field; strtof asks for the locale's point and is
// ready for any length and any rounding; a loop over characters mispredicts its end in every field, because fields differ in
// length. Eight digits are one number in a 64-bit word, so that a field takes a few multiplications and no branch; and separators
// can be found, and digits multiplied, for several fields at a time in vector registers.
#include <aisp/pair.hpp>

#include <array>
#include <bit>
#include <charconv>
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
constexpr std::array<double, 9> powers_of_ten{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8};

bool is_end(char c) { return c == ',' || c == '\n' || c == '\0'; }

// Of any field that strtof takes and from_chars may not: a sign in front.
const char* convert_any(const char* at, float& value) {
  if (*at == '+') ++at;
  const char* end = at;
  while (!is_end(*end)) ++end;
  const auto [stop, error] = std::from_chars(at, end, value);
  if (error != std::errc{} || stop != end) throw std::runtime_error{"a field is no number: " + std::string{at, end}};
  return end;
}

// Eight characters of which those that are no digits have their high bit set.
constexpr std::uint64_t every_byte = 0x0101010101010101ull;
std::uint64_t others_than_digits(std::uint64_t word) {
  const std::uint64_t digits = word ^ every_byte * 0x30;
  return (((digits & every_byte * 0x7F) + every_byte * 0x76) | digits) & every_byte * 0x80;
}

// The number that eight digits make, the first of them in the lowest byte: pairs, then fours, then all.
std::uint32_t number_of(std::uint64_t digits) {
  digits = (digits * (10 << 8 | 1) >> 8) & 0x00FF00FF00FF00FFull;
  digits = (digits * (100 << 16 | 1) >> 16) & 0x0000FFFF0000FFFFull;
  return static_cast<std::uint32_t>(digits * (10000ull << 32 | 1) >> 32);
}

// A field of at most eight digits and one point, without a branch that depends on its length; any other one by convert_any. The
// quotient of two exact doubles is rounded once, and then to fp32.
const char* convert_word(const char* at, float& value) {
  const char* const begin = at;
  const bool negative = *at == '-';
  at += negative ? 1 : 0;
  std::uint64_t low;
  std::memcpy(&low, at, sizeof low);
  const std::uint64_t marks = others_than_digits(low);
  if (marks == 0) return convert_any(begin, value);
  const int point_bit = std::countr_zero(marks) & ~7;
  std::uint64_t fraction;
  std::memcpy(&fraction, at + point_bit / 8 + 1, sizeof fraction);
  const std::uint64_t fraction_marks = others_than_digits(fraction);
  const int fraction_bits = std::countr_zero(fraction_marks) & ~7;
  const int bits = point_bit + fraction_bits;  // of all digits
  if (at[point_bit / 8] != '.' || bits > 64 || bits == 0 || !is_end(at[bits / 8 + 1])) return convert_any(begin, value);
  // The digits in front of the point, then those after it, moved to the end of the word; zeros lead.
  const std::uint64_t whole = (low ^ every_byte * 0x30) & ~(~std::uint64_t{0} << point_bit);
  const std::uint64_t rest = (fraction ^ every_byte * 0x30) << point_bit;
  const std::uint64_t digits = point_bit == 0 ? rest : (whole | rest);
  const double number = static_cast<double>(number_of(digits << (64 - bits)));
  const double magnitude = number / powers_of_ten[static_cast<std::size_t>(fraction_bits / 8)];
  value = static_cast<float>(negative ? -magnitude : magnitude);
  return at + bits / 8 + 1;
}

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
  void sum_bytes(Launch&) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < text_bytes_; ++i) sum += static_cast<unsigned char>(text_[i]);
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
        "text parsing is bound by the conversion's generality (locale, rounding by big numbers), allocation and mispredicted "
        "branches, not by bytes",
    .lesson = "from_chars",
    .make = make<Vectorization>,
    .baseline = {.name = "streams", .run = call<&Vectorization::streams>},
    .optimized = variants({{.name = "strtof", .run = call<&Vectorization::strtof>, .same_bits_as = "streams"},
                           {.name = "from_chars", .run = call<&Vectorization::from_chars>, .same_bits_as = "streams"},
                           {.name = "swar", .run = call<&Vectorization::swar>}}),
    .controls = variants({{.name = "sum_bytes", .run = call<&Vectorization::sum_bytes>, .outputs = no_outputs}}),
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

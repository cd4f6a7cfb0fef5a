// SPDX-License-Identifier: Apache-2.0
#include "report/warnings.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

namespace aisp::report {
namespace {

using evidence::PairResult;

constexpr std::string_view digits = "0123456789";

// A number with its unit: "7 %", "73.9 MiB", or "0.52" before a parenthesis that ends.
struct AmountInText {
  std::string number, unit;
  double value() const {
    constexpr std::array<std::string_view, 5> prefixes = {" B", " KiB", " MiB", " GiB", " TiB"};
    double times = 1;
    for (const std::string_view prefix : prefixes) {
      if (unit == prefix) return std::strtod(number.c_str(), nullptr) * times;
      times *= 1024;
    }
    return std::strtod(number.c_str(), nullptr);
  }
};

// A sentence cut at its amounts: one word more than amounts.
struct Sentence {
  std::vector<std::string> words{""};
  std::vector<AmountInText> least, most;
};

// Returns the unit at the beginning of `text`, or nothing if the number before it is none that may differ.
const std::string_view* unit_at(std::string_view text) {
  static constexpr std::array<std::string_view, 7> units = {" %", " B", " KiB", " MiB", " GiB", " TiB", ")"};
  const auto found = std::ranges::find_if(units, [&](std::string_view unit) { return text.starts_with(unit); });
  return found == units.end() ? nullptr : &*found;
}

Sentence cut(const std::string& text) {
  Sentence sentence;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    if (digits.find(text[i]) != digits.npos && (i == 0 || text[i - 1] == ' ' || text[i - 1] == '('))
      end = std::min(text.find_first_not_of("0123456789.", i), text.size());
    const std::string_view* unit = end > i ? unit_at(std::string_view{text}.substr(end)) : nullptr;
    if (unit == nullptr) {
      end = std::max(end, i + 1);
      sentence.words.back().append(text, i, end - i);
      i = end;
      continue;
    }
    // The parenthesis is of the words around.
    const std::string kept{*unit == ")" ? std::string_view{} : *unit};
    sentence.least.push_back({text.substr(i, end - i), kept});
    sentence.words.emplace_back();
    i = end + kept.size();
  }
  sentence.most = sentence.least;
  return sentence;
}

void widen(Sentence& sentence, const Sentence& other) {
  for (std::size_t i = 0; i < sentence.least.size(); ++i) {
    if (other.least[i].value() < sentence.least[i].value()) sentence.least[i] = other.least[i];
    if (other.most[i].value() > sentence.most[i].value()) sentence.most[i] = other.most[i];
  }
}

std::string range_text(const AmountInText& least, const AmountInText& most) {
  if (least.number == most.number && least.unit == most.unit) return least.number + least.unit;
  return least.number + (least.unit == most.unit ? "" : least.unit) + " to " + most.number + most.unit;
}

std::string text_of(const Sentence& sentence) {
  std::string text = sentence.words.front();
  for (std::size_t i = 0; i < sentence.least.size(); ++i)
    text += range_text(sentence.least[i], sentence.most[i]) + sentence.words[i + 1];
  return text;
}

std::vector<Said> grouped(const std::vector<PairResult>& pairs, std::vector<std::string> PairResult::*texts) {
  std::vector<Sentence> sentences;
  std::vector<Said> said;
  for (const PairResult& pair : pairs)
    for (const std::string& text : pair.*texts) {
      const Sentence sentence = cut(text);
      const auto found = std::ranges::find(sentences, sentence.words, &Sentence::words);
      const auto place = static_cast<std::size_t>(found - sentences.begin());
      if (found == sentences.end()) {
        sentences.push_back(sentence);
        said.emplace_back();
      } else {
        widen(*found, sentence);
      }
      if (said[place].pairs.empty() || said[place].pairs.back() != &pair) said[place].pairs.push_back(&pair);
    }
  for (std::size_t i = 0; i < said.size(); ++i) said[i].text = text_of(sentences[i]);
  return said;
}

}  // namespace

std::vector<Said> grouped_by(const std::vector<PairResult>& pairs,
                             const std::function<std::vector<std::string>(const PairResult&)>& texts_of) {
  std::vector<Said> said;
  for (const PairResult& pair : pairs)
    for (std::string& text : texts_of(pair)) {
      auto found = std::ranges::find(said, text, &Said::text);
      if (found == said.end()) found = said.insert(said.end(), {std::move(text), {}});
      if (found->pairs.empty() || found->pairs.back() != &pair) found->pairs.push_back(&pair);
    }
  return said;
}

std::vector<Said> warnings_of(const std::vector<PairResult>& pairs) { return grouped(pairs, &PairResult::warnings); }
std::vector<Said> notes_of(const std::vector<PairResult>& pairs) { return grouped(pairs, &PairResult::notes); }

}  // namespace aisp::report

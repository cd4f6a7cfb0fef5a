// SPDX-License-Identifier: Apache-2.0
// A closed set of words: an enum and, for words_of(E) in its namespace, one table of their texts in the order of its enumerators.
// Files, tables and screens take the texts from it, and what is read is looked up in it.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <type_traits>

namespace aisp::base {

template <std::size_t n>
struct Words {
  std::array<std::string_view, n> words;
};

template <class E>
concept HasWords = std::is_enum_v<E> && requires(E value) {
  words_of(value).words;
};

template <HasWords E>
constexpr std::string_view word_for(E value) {
  return words_of(value).words[static_cast<std::size_t>(value)];
}

// All of a set, in its order.
template <HasWords E>
constexpr auto all_words() {
  return words_of(E{}).words;
}

// The one that a word stands for; nothing for a word that is none of them.
template <HasWords E>
constexpr std::optional<E> find_word(std::string_view word) {
  const auto words = all_words<E>();
  const auto found = std::find(words.begin(), words.end(), word);
  return found == words.end() ? std::nullopt : std::optional{static_cast<E>(found - words.begin())};
}

}  // namespace aisp::base

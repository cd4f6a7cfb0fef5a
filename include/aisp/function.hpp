// SPDX-License-Identifier: Apache-2.0
// A type-erased callable as std::function is, without the 20,000 lines of its header.
#pragma once
#include <type_traits>
#include <utility>

namespace aisp {

template <class Signature>
class Function;

// Owns a copy of any callable object of this signature; an empty one must not be called.
template <class Result, class... Arguments>
class Function<Result(Arguments...)> {
 public:
  Function() = default;
  template <class F>
  Function(F callable) requires(!std::is_same_v<F, Function> && std::is_invocable_r_v<Result, const F&, Arguments...>)
      : object_{new F(std::move(callable))}, of_{&kept<F>} {}
  Function(const Function& other) : object_{other ? other.of_->copy(other.object_) : nullptr}, of_{other.of_} {}
  Function(Function&& other) noexcept : object_{std::exchange(other.object_, nullptr)}, of_{other.of_} {}
  Function& operator=(Function other) noexcept {
    std::swap(object_, other.object_);
    std::swap(of_, other.of_);
    return *this;
  }
  ~Function() {
    if (object_ != nullptr) of_->destroy(object_);
  }

  explicit operator bool() const { return object_ != nullptr; }
  Result operator()(Arguments... arguments) const { return of_->call(object_, std::forward<Arguments>(arguments)...); }

 private:
  struct Operations {
    Result (*call)(const void*, Arguments...);
    void* (*copy)(const void*);
    void (*destroy)(void*);
  };
  template <class F>
  struct Kept {
    static Result call(const void* object, Arguments... arguments) {
      return (*static_cast<const F*>(object))(std::forward<Arguments>(arguments)...);
    }
    static void* copy(const void* object) { return new F(*static_cast<const F*>(object)); }
    static void destroy(void* object) { delete static_cast<F*>(object); }
  };
  template <class F>
  static constexpr Operations kept{&Kept<F>::call, &Kept<F>::copy, &Kept<F>::destroy};

  void* object_ = nullptr;
  const Operations* of_ = nullptr;
};

}  // namespace aisp

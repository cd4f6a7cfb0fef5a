// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/check.hpp>
#include <aisp/setup.hpp>

#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>

namespace aisp {

// A member that is an object of a library, as a handle or a plan: `Opened<Cublas> cublas_;`, made by `cublas_{setup}`, further
// arguments are the object's own. The harness opens it before the first run of a variant whose needs, or whose pair's, name the
// library; a variant that uses one of which the library cannot do is skipped. What an object is made of comes before it.
template <class T>
class Opened {
 public:
  template <class... Arguments>
  explicit Opened(Setup& setup, Arguments... arguments) {
    setup.when_needed(T::library, [state = state_, made_of = std::tuple<Arguments...>{arguments...}] {
      if (state->object || !state->why_not.empty()) return;
      try {
        std::apply([&state](const Arguments&... all) { state->object = std::make_unique<T>(all...); }, made_of);
      } catch (const Unsupported& reason) {
        state->why_not = reason.what();
      }
    });
  }

  T& operator*() const {
    if (state_->object) return *state_->object;
    if (!state_->why_not.empty()) throw Unsupported{state_->why_not};
    throw std::logic_error{"a variant uses " + std::string{name_of(T::library)} +
                           ", but neither its needs nor its pair's say so"};
  }
  T* operator->() const { return &**this; }
  operator const T&() const { return **this; }

 private:
  struct State {
    std::unique_ptr<T> object;
    std::string why_not;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace aisp

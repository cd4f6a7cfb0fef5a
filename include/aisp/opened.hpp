// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/check.hpp>
#include <aisp/setup.hpp>

#include <new>
#include <tuple>

namespace aisp {

namespace detail {

// Throws std::logic_error: no needs name the library.
[[noreturn]] void throw_library_not_declared(Library library);

// An object of a library and the arguments that it is made of.
template <class T>
class OpenedObject : public LibraryObject {
 public:
  ~OpenedObject() override {
    if (object_ != nullptr) object_->~T();
    delete refused_;
  }
  OpenedObject(const OpenedObject&) = delete;
  OpenedObject& operator=(const OpenedObject&) = delete;

  void open() override {
    if (object_ != nullptr || refused_ != nullptr) return;
    try {
      object_ = make(storage_);
    } catch (const Unsupported& reason) {
      refused_ = new Unsupported{reason};  // NOLINT(bugprone-throw-keyword-missing): get() throws it
    }
  }
  void share() { ++owners_; }
  bool is_last_owner() { return --owners_ == 0; }
  T& get() const {
    if (object_ != nullptr) return *object_;
    if (refused_ != nullptr) throw Unsupported{*refused_};
    throw_library_not_declared(T::library);
  }

 protected:
  OpenedObject() = default;

 private:
  virtual T* make(void* place) const = 0;

  int owners_ = 1;
  alignas(T) unsigned char storage_[sizeof(T)];
  T* object_ = nullptr;
  const Unsupported* refused_ = nullptr;
};

template <class T, class... Arguments>
class OpenedBy final : public OpenedObject<T> {
 public:
  explicit OpenedBy(const Arguments&... arguments) : arguments_{arguments...} {}

 private:
  T* make(void* place) const override { return make(place, std::index_sequence_for<Arguments...>{}); }
  template <std::size_t... index>
  T* make(void* place, std::index_sequence<index...> /*all*/) const {
    return new (place) T(std::get<index>(arguments_)...);
  }

  std::tuple<Arguments...> arguments_;
};

}  // namespace detail

// A member that is an object of a library, such as a handle or a plan: `Opened<Cublas> cublas_;`, made by `cublas_{setup}`,
// further arguments are the object's own. The harness opens it before the first run of a variant whose needs, or whose pair's,
// name the library; if the library cannot make it, the variants that use it are skipped. An object's arguments are opened before
// it.
template <class T>
class Opened {
 public:
  template <class... Arguments>
  explicit Opened(Setup& setup, Arguments... arguments) : object_{new detail::OpenedBy<T, Arguments...>{arguments...}} {
    setup.when_needed(T::library, *object_);
  }
  Opened(const Opened& other) : object_{other.object_} { object_->share(); }  // an argument of another object
  Opened& operator=(const Opened&) = delete;
  ~Opened() {
    if (object_->is_last_owner()) delete object_;
  }

  T& operator*() const { return object_->get(); }
  T* operator->() const { return &**this; }
  operator const T&() const { return **this; }

 private:
  detail::OpenedObject<T>* object_;
};

}  // namespace aisp

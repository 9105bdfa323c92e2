//! The C ABI as C and C++ programs see it.

mod examples;
mod fork;
mod hip_tests;
mod interface;
mod layout;
mod own;
mod privileges;
mod program;
mod torture;

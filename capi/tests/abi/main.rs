//! The C interface as used by C and C++ programs.

mod baseline;
mod examples;
mod fork;
mod headers;
mod hip_page;
mod hip_tests;
mod installed;
mod interface;
mod layout;
mod own;
mod privileges;
mod program;
mod programs;
mod sequences;
mod surroundings;
mod torture;

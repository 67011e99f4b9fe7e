//! Settings in JSON and TOML as a user types them: by their `Display` and `FromStr`. For `#[serde(with)]`.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serializer};

/// Writes what a user would type.
pub fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Reads what a user typed.
pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

/// The same for each value of a list.
pub mod list {
    use super::{Deserialize, Deserializer, Display, FromStr, Serializer};

    /// Writes what a user would type.
    pub fn serialize<T: Display, S: Serializer>(values: &[T], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(ToString::to_string))
    }

    /// Reads what a user typed.
    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
    }
}

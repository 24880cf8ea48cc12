//! The words by which refusals tell quota, stock and balance where their status leaves it open (§1.9).
//!
//! Their language varies, their wording is nowhere written down, and Vietnamese comes with and without its marks. Whoever meets
//! words that are missing here adds them in the settings.

use super::ErrorClass;

/// Words besides those that are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    pub quota: Vec<String>,
    pub stock: Vec<String>,
    pub balance: Vec<String>,
}

const QUOTA: [&str; 5] = ["quota", "limit exceeded", "exceed", "hạn mức", "vượt quá"];
const STOCK: [&str; 7] = [
    "out of stock",
    "not enough",
    "no valid host",
    "insufficient",
    "sold out",
    "hết",
    "không đủ tài nguyên",
];
const BALANCE: [&str; 3] = ["balance", "số dư", "payment"];

impl Words {
    /// What a text says, if it has one of the words.
    pub fn class_of(&self, text: &str) -> Option<ErrorClass> {
        let lower = text.to_lowercase();
        let bare = words_of(&lower);
        let has = |known: &[&str], own: &[String]| {
            let mut words = known.iter().copied().chain(own.iter().map(String::as_str));
            words.any(|word| means(&lower, &bare, &word.trim().to_lowercase()))
        };
        if has(&QUOTA, &self.quota) {
            Some(ErrorClass::Quota)
        } else if has(&STOCK, &self.stock) {
            Some(ErrorClass::Stock)
        } else if has(&BALANCE, &self.balance) {
            Some(ErrorClass::Payment)
        } else {
            None
        }
    }
}

/// Without marks, "hết" is also a part of "whether": there only whole words count.
fn means(lower: &str, bare: &str, word: &str) -> bool {
    let own = words_of(word);
    // A word without a letter would be found in every text.
    own != " " && (lower.contains(word) || bare.contains(&own))
}

/// The words of a text without marks, each between blanks.
fn words_of(text: &str) -> String {
    let bare: String = text.chars().filter(|own| !is_mark(*own)).map(without_mark).collect();
    let words = bare
        .split(|own: char| !own.is_alphanumeric())
        .filter(|word| !word.is_empty());
    words.fold(" ".to_owned(), |text, word| text + word + " ")
}

/// A mark that is a character of its own, after the letter that it belongs to.
fn is_mark(own: char) -> bool {
    ('\u{300}'..='\u{36f}').contains(&own)
}

/// A small Vietnamese letter without its marks.
fn without_mark(own: char) -> char {
    const LETTERS: [(char, &str); 7] = [
        ('a', "àáạảãâầấậẩẫăằắặẳẵ"),
        ('d', "đ"),
        ('e', "èéẹẻẽêềếệểễ"),
        ('i', "ìíịỉĩ"),
        ('o', "òóọỏõôồốộổỗơờớợởỡ"),
        ('u', "ùúụủũưừứựửữ"),
        ('y', "ỳýỵỷỹ"),
    ];
    let found = LETTERS.iter().find(|(_, marked)| marked.contains(own));
    found.map_or(own, |(bare, _)| *bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, class: Option<ErrorClass>) {
        assert_eq!(Words::default().class_of(text), class, "{text}");
    }

    #[test]
    fn words_count_in_both_languages_with_and_without_marks() {
        for text in [
            "Quota exceeded for cores",
            "Vượt quá hạn mức vCPU",
            "VUOT QUA han muc vCPU",
        ] {
            check(text, Some(ErrorClass::Quota));
        }
        for text in [
            "No valid host was found",
            "Gói này đã hết",
            "goi nay da het.",
            "Khong du tai nguyen",
        ] {
            check(text, Some(ErrorClass::Stock));
        }
        for text in ["Số dư không đủ", "so du khong du", "Payment is due"] {
            check(text, Some(ErrorClass::Payment));
        }
        // Marks as characters of their own.
        check("he\u{302}\u{301}t", Some(ErrorClass::Stock));
        check("Image not found", None);
        check("unclear whether the key exists", None);
    }

    #[test]
    fn words_of_the_settings_count_too() {
        let own = Words {
            stock: vec!["Tạm ngưng bán".to_owned(), String::new(), "-".to_owned()],
            ..Words::default()
        };
        assert_eq!(own.class_of("flavor: tam ngung ban"), Some(ErrorClass::Stock));
        assert_eq!(
            own.class_of("flavor is unknown"),
            None,
            "a word without a letter means nothing"
        );
    }
}

//! Homoglyphs: words of Latin letters mixed with lookalikes from other scripts.

/// True if a text has such a word. Words in a single script of any kind are fine.
pub fn mixes(text: &str) -> bool {
    !text.is_ascii() && text.split(|c: char| !c.is_alphanumeric()).any(is_mixed)
}

fn is_mixed(word: &str) -> bool {
    word.chars().any(passes_for_latin) && word.chars().any(|c| c.is_ascii_alphabetic())
}

/// Letters of other scripts that pass for Latin. For Greek only the identical ones: formulas mix in the rest.
fn passes_for_latin(c: char) -> bool {
    matches!(c, 'Α' | 'Β' | 'Ε' | 'Ζ' | 'Η' | 'Ι' | 'Κ' | 'Μ' | 'Ν' | 'Ο' | 'Ρ' | 'Τ' | 'Υ' | 'Χ' | 'ι' | 'ν' | 'ο' | 'ϳ'
        | '\u{400}'..='\u{52f}' // Cyrillic
        | '\u{531}'..='\u{587}' // Armenian
        | '\u{13a0}'..='\u{13ff}' | '\u{ab70}'..='\u{abbf}' // Cherokee
        | '\u{1c80}'..='\u{1c8f}' | '\u{2de0}'..='\u{2dff}' | '\u{a640}'..='\u{a69f}' // more Cyrillic
        | '\u{2c80}'..='\u{2cff}' // Coptic
        | '\u{a4d0}'..='\u{a4ff}' // Lisu
        | '\u{ff21}'..='\u{ff3a}' | '\u{ff41}'..='\u{ff5a}' // full width
        | '\u{1d400}'..='\u{1d7ff}') // mathematical
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise 13
    #[test]
    fn words_that_mix_scripts_are_found_and_words_of_one_are_not() {
        for text in ["say\u{41d}ello()", "p\u{430}ypal", "if \u{391}dmin {", "\u{ff45}val", "x\u{1d41a}"] {
            assert!(mixes(text), "{text:?}");
        }
        for text in [
            "plain",
            "\u{43f}\u{440}\u{438}\u{432}\u{435}\u{442} world",
            "user_\u{438}\u{43c}\u{44f}",
            "\u{394}t = 5\u{b5}s",
            "caf\u{e9}",
            "\u{4f60}\u{597d}a",
        ] {
            assert!(!mixes(text), "{text:?}");
        }
    }
}

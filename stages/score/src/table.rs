//! Small text tables: columns as wide as their widest cell, two spaces between them.
//!
//! It knows characters, not what the cells mean, and neither colour nor the terminal's width.

use std::fmt;

/// To which side the cells of a column go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table under a line of headings; its `Display` ends without a newline.
#[derive(Clone, Debug)]
pub struct Table {
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows, of the columns with these headings.
    #[must_use]
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Self {
            align: columns.iter().map(|&(_, align)| align).collect(),
            rows: vec![columns.iter().map(|&(heading, _)| heading.to_owned()).collect()],
        }
    }

    /// Adds a row with a cell a column.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.align.len(), "a row has a cell a column");
        self.rows.push(cells.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        let widths: Vec<usize> = (0..self.align.len()).map(width).collect();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for ((cell, &width), align) in row.iter().zip(&widths).zip(&self.align) {
                match align {
                    Align::Left => line += &format!("{cell:<width$}  "),
                    Align::Right => line += &format!("{cell:>width$}  "),
                }
            }
            // No trailing blanks: reports are compared and pasted.
            let newline = if index == 0 { "" } else { "\n" };
            write!(f, "{newline}{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_in_characters() {
        let mut table = Table::new(&[("gate", Align::Left), ("value", Align::Right), ("at", Align::Left)]);
        table.row(["é".into(), "1".into(), "layer 3".into()]);
        table.row(["longer name".into(), "0.25".into(), String::new()]);
        insta::assert_snapshot!(table.to_string(), @r"
        gate         value  at
        é                1  layer 3
        longer name   0.25
        ");
    }
}

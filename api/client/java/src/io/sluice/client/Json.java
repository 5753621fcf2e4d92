package io.sluice.client;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Reads and writes JSON (RFC 8259) as plain values: Map, List, String, Boolean, null, Long for whole
 * numbers and BigDecimal for others.
 */
public final class Json {
  private static final int DEEPEST = 100; // nested arrays and objects

  private final String text;
  private int at;

  private Json(String text) {
    this.text = text;
  }

  /** The value of a JSON text. An IllegalArgumentException names the place of a mistake. */
  public static Object parse(String text) {
    Json json = new Json(text);
    Object value = json.value(0);
    json.blanks();
    if (json.at < text.length()) {
      throw json.wrong("the end");
    }
    return value;
  }

  /** The JSON text of a value: those of parse, any Number, and any other object by its toString. */
  public static String format(Object value) {
    StringBuilder out = new StringBuilder();
    write(out, value);
    return out.toString();
  }

  private static void write(StringBuilder out, Object value) {
    if (value == null || value instanceof Boolean) {
      out.append(value);
    } else if (value instanceof Number number) {
      if (Double.isNaN(number.doubleValue()) || Double.isInfinite(number.doubleValue())) {
        throw new IllegalArgumentException("JSON has no " + number);
      }
      out.append(number);
    } else if (value instanceof Map<?, ?> map) {
      String separator = "{";
      for (Map.Entry<?, ?> entry : map.entrySet()) {
        quote(out.append(separator), String.valueOf(entry.getKey()));
        write(out.append(':'), entry.getValue());
        separator = ",";
      }
      out.append(map.isEmpty() ? "{}" : "}");
    } else if (value instanceof Iterable<?> list) {
      out.append('[');
      String separator = "";
      for (Object item : list) {
        write(out.append(separator), item);
        separator = ",";
      }
      out.append(']');
    } else {
      quote(out, value.toString());
    }
  }

  private static void quote(StringBuilder out, String text) {
    out.append('"');
    for (char c : text.toCharArray()) {
      if (c == '"' || c == '\\') {
        out.append('\\').append(c);
      } else if (c < ' ' || Character.isSurrogate(c)) {
        out.append(String.format("\\u%04x", (int) c));
      } else {
        out.append(c);
      }
    }
    out.append('"');
  }

  private Object value(int depth) {
    if (depth > DEEPEST) {
      throw wrong("fewer than " + DEEPEST + " levels");
    }
    blanks();
    switch (peek()) {
      case '{':
        Map<String, Object> map = new LinkedHashMap<>();
        for (at++; !ends('}', map.isEmpty()); ) {
          String name = string();
          expect(':');
          map.put(name, value(depth + 1));
        }
        return map;
      case '[':
        List<Object> list = new ArrayList<>();
        for (at++; !ends(']', list.isEmpty()); ) {
          list.add(value(depth + 1));
        }
        return list;
      case '"':
        return string();
      case 't':
        return word("true", Boolean.TRUE);
      case 'f':
        return word("false", Boolean.FALSE);
      case 'n':
        return word("null", null);
      default:
        return number();
    }
  }

  /** Whether a list or an object ends here; otherwise it goes on, behind a comma but at its start. */
  private boolean ends(char bracket, boolean first) {
    blanks();
    if (peek() == bracket) {
      at++;
      return true;
    }
    if (!first) {
      expect(',');
      blanks();
    }
    return false;
  }

  private Object number() {
    int from = at;
    while (at < text.length() && "+-.0123456789eE".indexOf(text.charAt(at)) >= 0) {
      at++;
    }
    String digits = text.substring(from, at);
    try {
      return digits.matches("-?\\d{1,18}") ? (Object) Long.valueOf(digits) : new BigDecimal(digits);
    } catch (NumberFormatException e) {
      at = from;
      throw wrong("a value");
    }
  }

  private Object word(String word, Object value) {
    if (!text.startsWith(word, at)) {
      throw wrong("a value");
    }
    at += word.length();
    return value;
  }

  private String string() {
    blanks();
    if (peek() != '"') {
      throw wrong("a string");
    }
    StringBuilder out = new StringBuilder();
    for (at++; peek() != '"'; at++) {
      char c = text.charAt(at);
      if (c != '\\') {
        out.append(c);
        continue;
      }
      at++;
      c = peek();
      int plain = "\"\\/bfnrt".indexOf(c);
      if (plain >= 0) {
        out.append("\"\\/\b\f\n\r\t".charAt(plain));
      } else if (c == 'u' && text.length() > at + 4) {
        out.append((char) Integer.parseInt(text, at + 1, at + 5, 16));
        at += 4;
      } else {
        throw wrong("an escape");
      }
    }
    at++;
    return out.toString();
  }

  private void expect(char c) {
    blanks();
    if (peek() != c) {
      throw wrong("'" + c + "'");
    }
    at++;
  }

  private void blanks() {
    while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
      at++;
    }
  }

  private char peek() {
    if (at >= text.length()) {
      throw wrong("more");
    }
    return text.charAt(at);
  }

  private IllegalArgumentException wrong(String expected) {
    return new IllegalArgumentException("not JSON: expected " + expected + " at character " + at);
  }
}

import { describe, expect, it } from 'vitest'
import { YamlTextError, yamlDocuments } from '../../../../src/source/file/yaml-documents.ts'

function values(text: string): unknown[] {
  return [...yamlDocuments(text)].map(({ value }) => value)
}

function errorOf(text: string): YamlTextError {
  try {
    values(text)
  } catch (error) {
    if (error instanceof YamlTextError) return error
    throw error
  }
  throw new Error('no error')
}

describe('yamlDocuments', () => {
  it('gives every document; empty ones are null', () => {
    expect(values('---\n# nothing\n---\na: 1\n---\n---\nb: |\n  x\n  --- y\n...\n--- {c: 2}\n')).toEqual([
      null,
      { a: 1 },
      null,
      { b: 'x\n--- y\n' },
      { c: 2 },
    ])
  })

  it('keeps a directive with its document', () => {
    expect(values('%YAML 1.2\n# note\n---\na: 1\n')).toEqual([{ a: 1 }])
  })

  it('understands anchors and merge keys', () => {
    expect(values('base: &b {x: 1}\nuse: {<<: *b, y: 2}')).toEqual([{ base: { x: 1 }, use: { x: 1, y: 2 } }])
  })

  it('names line and column of a mistake, counted over all documents', () => {
    const error = errorOf('a: 1\n---\nok: yes\n---\nb: [1\nc: 2\n')
    expect([error.line, error.column > 0]).toEqual([6, true])
    expect(error.message).not.toContain('\n')
  })

  it('refuses a key that stands twice', () => {
    const error = errorOf('a: 1\nb:\n  c: 1\n  c: 2\n')
    expect([error.line, error.column]).toEqual([4, 3])
    expect(error.message).toMatch(/unique/i)
  })

  it('refuses an alias bomb', () => {
    const lines = ['a: &a [x,x,x,x,x,x,x,x,x]']
    for (const [from, to] of ['ab', 'bc', 'cd', 'de', 'ef', 'fg', 'gh', 'hi'])
      lines.push(`${to}: &${to} [${new Array(9).fill(`*${from}`).join(',')}]`)
    expect(errorOf(lines.join('\n')).message).toMatch(/alias/i)
  })
})

describe('a document that exhausts a parser', () => {
  it('F141: is refused with its length where it is too long', () => {
    expect(errorOf(`a: ${'x'.repeat(1 << 20)}`).message).toMatch(
      /has 1048579 characters, and at most 1048576 are read; write several documents, or JSON$/,
    )
  })

  it.each(['[', '- ', '{', '{a: ', '? '])('F141: nesting without end is refused: %s', level => {
    expect(errorOf(level.repeat(200_000)).message).toBe('nested more than 200 levels deep')
  })

  it('F141: blocks that are indented without end are refused', () => {
    const lines = Array.from({ length: 1_000 }, (_, depth) => `${' '.repeat(depth)}a:\n`)
    expect(errorOf(lines.join('')).message).toBe('nested more than 200 levels deep')
  })
})

import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'

const { notesOf } = await import(new URL('../../../deploy/release/notes.mjs', import.meta.url).href)

const CHANGELOG = `# Changelog

Words of the file.

## [Unreleased]

### nftables mode

- new

## [0.2.0] - 2026-11-29

- two

## [0.1.0] - 2026-01-01

- one
`
const empty = CHANGELOG.replace('### nftables mode\n\n- new\n', '')

describe('the notes of a release', () => {
  it('are the section of its version', () => {
    expect(notesOf(empty, { version: '0.2.0', dryRun: false })).toBe('- two\n')
    expect(notesOf(CHANGELOG, { version: '0.1.0', dryRun: true })).toBe('- one\n')
  })

  it('are those of the unreleased version in a dry run', () => {
    expect(notesOf(CHANGELOG, { version: '0.3.0', dryRun: true })).toBe('### nftables mode\n\n- new\n')
    const text = readFileSync(fileURLToPath(new URL('../../../CHANGELOG.md', import.meta.url)), 'utf8')
    expect(notesOf(text, { version: '9.9.9', dryRun: true })).toMatch(/^### All modes\n/)
  })

  it.each([
    [CHANGELOG, '0.3.0', false, 'has no section [0.3.0]'],
    [CHANGELOG, '0.2.0', false, 'has entries under [Unreleased]'],
    [empty, '0.3.0', true, 'says nothing about 0.3.0'],
    ['', '0.3.0', true, 'says nothing about 0.3.0'],
  ])('are refused where the file is not ready', (changelog, version, dryRun, why) => {
    expect(() => notesOf(changelog, { version, dryRun })).toThrow(why)
  })
})

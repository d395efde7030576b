import { describe, expect, it } from 'vitest'
import { hasToken, isOwnHost } from '../../../src/http/connections.ts'

describe('isOwnHost', () => {
  it.each([
    '127.0.0.1',
    '127.0.0.1:8080',
    '[::1]:8080',
    '[fd00::1]',
    '192.0.2.1:80',
    'localhost:1',
    'LOCALHOST',
    'node-1:80',
  ])('takes %s', host => expect(isOwnHost(host, ['node-1'])).toBe(true))

  it.each([
    undefined,
    '',
    ':80',
    'evil.example',
    'evil.example:8080',
    'localhost.evil.example',
    'localhost.',
    '127.0.0.1.evil.example',
    'node-1.evil.example',
    '[127.0.0.1]',
    '[evil]:80',
    'localhost:80:80',
    'user@localhost',
    '127.0.0.1, evil.example',
  ])('refuses %s', host => expect(isOwnHost(host, ['node-1'])).toBe(false))
})

describe('hasToken', () => {
  const basic = (text: string) => `Basic ${Buffer.from(text).toString('base64')}`

  it.each(['Bearer s3cret', 'bearer s3cret', basic('admin:s3cret'), basic(':s3cret')])('takes %s', given =>
    expect(hasToken(given, 's3cret')).toBe(true),
  )

  it.each([
    undefined,
    '',
    'Bearer',
    'Bearer ',
    'Bearer s3cre',
    's3cret',
    basic('s3cret:'),
    basic('admin:S3cret'),
    'Digest s3cret',
  ])('refuses %s', given => expect(hasToken(given, 's3cret')).toBe(false))

  it('takes none where the token is empty, and colons in a password', () => {
    expect(hasToken(basic('admin:'), '')).toBe(false)
    expect(hasToken(basic('admin:a:b'), 'a:b')).toBe(true)
  })
})

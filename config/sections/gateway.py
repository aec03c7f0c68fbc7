"""Who may come in through the Gateway: parts of the section `kubernetes.route` of a spec."""

from marina.config.sections.section import Filled, ObjectName, Section, Url


class Jwt(Section):
    """Signed tokens of an identity provider."""

    issuer: Filled
    """Who issues the tokens, as their `iss` says. Lands in the SecurityPolicy."""
    jwks: Url
    """Where the gateway reads the issuer's public keys, such as `https://id.example.org/keys`. Lands in the
    SecurityPolicy."""
    audiences: tuple[Filled, ...] = ()
    """For whom a token must be issued, one of these in its `aud`; others get 403. Default: not checked. Lands in the
    SecurityPolicy."""


class Auth(Section):
    """Whose requests the Gateway lets in; all others get 401. One of both."""

    api_keys: ObjectName | None = None
    """The Secret with the keys, in the service's namespace: each entry's name is that of a client, its value the key,
    which comes in the header `x-api-key`, or as `Authorization: Bearer`. Lands in the SecurityPolicy."""
    jwt: Jwt | None = None
    """Tokens of an identity provider, as `Authorization: Bearer`. Lands in the SecurityPolicy."""

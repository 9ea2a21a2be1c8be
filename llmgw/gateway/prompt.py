"""A prompt's beginning as a chain of hashed blocks, and a session as one number."""

from xxhash import xxh3_64_intdigest


def block_hashes(prompt: bytes, tenant: str, model: str, block: int, most: int) -> list[int]:
    """One integer per whole block of the prompt's JSON, each standing for all before it too.

    Seeded with model and tenant, so that one tenant's prompts tell nothing of another's.
    """
    chain = xxh3_64_intdigest(f"{model}\0{tenant}".encode())
    hashes = []
    for start in range(0, min(len(prompt) // block, most) * block, block):
        chain = xxh3_64_intdigest(prompt[start : start + block], chain)
        hashes.append(chain)
    return hashes


def session_hash(session: bytes, tenant: str) -> int:
    return xxh3_64_intdigest(session, xxh3_64_intdigest(tenant.encode()))
